import { useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import type { BoardData } from "@/api/board-data";
import { all, api, got } from "@/api/client";
import { agents, pendingAsks, projects } from "@/api/queries";
import type { Agent, Project, Sandbox, TaskCard } from "@/api/types";
import { queue } from "@/features/queue/queue";
import { agentOf, agentTitle, leading, needsPerson } from "@/features/tasks/card-facts";
import type { CardProps } from "./card";

/** Data that cards show in addition to their own. */
export interface BoardView {
  projects: ReadonlyMap<string, Project>;
  /** Sessions with a pending question or permission request. */
  asked: ReadonlySet<string>;
  /** Whether the query for `asked` has succeeded or failed. */
  asksKnown: boolean;
  agents: ReadonlyMap<string, Agent>;
  sandboxes: ReadonlyMap<string, Sandbox["status"]>;
  titles: ReadonlyMap<string, string>;
  /** Queue positions by task. Newer than the position on the card, which does not change when others leave the queue. */
  places: ReadonlyMap<string, number>;
  /** More than one project is shown. */
  several: boolean;
}

const sandboxes = {
  queryKey: ["sandboxes", "of the board"],
  queryFn: () =>
    all((cursor) => got(api.GET("/api/v1/sandboxes", { params: { query: { all: true, cursor, limit: 200 } } }))),
  select: (list: Sandbox[]) => new Map(list.map((one) => [one.id, one.status])),
};

const NONE: ReadonlyMap<string, Sandbox["status"]> = new Map();

/** Load the additional data. What cannot be loaded is omitted, so that the board still works. */
export function useBoardView(board: BoardData | undefined, chosen: string | undefined): BoardView {
  const { data: known } = useQuery(projects);
  const { data: workers } = useQuery(agents);
  const { data: asks, isPending: asksAwaited } = useQuery(pendingAsks);
  const { data: waiting } = useQuery(queue);
  const { data: states } = useQuery(sandboxes);
  const byId = useMemo(() => new Map<string, Project>(known?.map((one) => [one.id, one])), [known]);
  const byName = useMemo(() => new Map<string, Agent>(workers?.map((one) => [one.name, one])), [workers]);
  const asked = useMemo(() => new Set(asks?.map((one) => one.sessionId)), [asks]);
  const titles = useMemo(
    () =>
      new Map([
        ...Object.entries(board?.titles ?? {}),
        ...(board?.items ?? []).map((one) => [one.id, one.title] as const),
      ]),
    [board],
  );
  const places = useMemo(() => new Map(waiting?.toReversed().map((one) => [one.taskId, one.position])), [waiting]);
  return useMemo(
    () => ({
      places,
      projects: byId,
      agents: byName,
      asked,
      asksKnown: !asksAwaited,
      sandboxes: states ?? NONE,
      titles,
      several: !chosen && byId.size > 1,
    }),
    [byId, byName, asked, asksAwaited, states, titles, places, chosen],
  );
}

/** Return the card's props as plain values, so that a memoized card re-renders only when one of them changes. */
export function cardProps(task: TaskCard, view: BoardView): Omit<CardProps, "task" | "tabStop"> {
  const project = view.projects.get(task.projectId);
  const name = agentOf(task, project);
  const agent = name ? view.agents.get(name) : undefined;
  const sandboxId = leading(task)?.sandboxId;
  const blockers = task.blockedBy.map((id) => view.titles.get(id) ?? "a task that is not shown").join(", ");
  return {
    project: view.several ? project?.name : undefined,
    agent: agent ? agentTitle(agent) : (name ?? undefined),
    sandbox: sandboxId ? view.sandboxes.get(sandboxId) : undefined,
    needsYou: needsPerson(task, view.asked),
    blockers: blockers || undefined,
    place: view.places.get(task.id),
  };
}
