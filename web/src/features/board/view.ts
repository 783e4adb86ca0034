import { useMemo } from "react";
import type { BoardData } from "@/api/board-data";
import { useAgents } from "@/api/queries/agents";
import { usePendingAsks } from "@/api/queries/conversation";
import { useProjects } from "@/api/queries/projects";
import { useSandboxStates } from "@/api/queries/sandboxes";
import { useQueue } from "@/api/queries/tasks";
import type { Agent, Project, Sandbox, TaskCard } from "@/api/types";
import { agentOf, agentTitle, leadingAttempt, needsPerson } from "@/model/task-facts";
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
  queuePositions: ReadonlyMap<string, number>;
  /** More than one project is shown. */
  several: boolean;
}

const NO_STATES: ReadonlyMap<string, Sandbox["status"]> = new Map();

/** Load the additional data. What cannot be loaded is omitted, so that the board still works. */
export function useBoardView(board: BoardData | undefined, chosen: string | undefined): BoardView {
  const { data: projects } = useProjects();
  const { data: agents } = useAgents();
  const { data: asks, isPending: asksPending } = usePendingAsks();
  const { data: queue } = useQueue();
  const { data: states } = useSandboxStates();
  const projectsById = useMemo(
    () => new Map<string, Project>(projects?.map((project) => [project.id, project])),
    [projects],
  );
  const agentsByName = useMemo(() => new Map<string, Agent>(agents?.map((agent) => [agent.name, agent])), [agents]);
  const asked = useMemo(() => new Set(asks?.map((ask) => ask.sessionId)), [asks]);
  const titles = useMemo(
    () =>
      new Map([
        ...Object.entries(board?.titles ?? {}),
        ...(board?.items ?? []).map((card) => [card.id, card.title] as const),
      ]),
    [board],
  );
  const queuePositions = useMemo(
    () => new Map(queue?.toReversed().map((queued) => [queued.taskId, queued.position])),
    [queue],
  );
  return useMemo(
    () => ({
      queuePositions,
      projects: projectsById,
      agents: agentsByName,
      asked,
      asksKnown: !asksPending,
      sandboxes: states ?? NO_STATES,
      titles,
      several: !chosen && projectsById.size > 1,
    }),
    [projectsById, agentsByName, asked, asksPending, states, titles, queuePositions, chosen],
  );
}

/** Return the card's props as plain values, so that a memoized card re-renders only when one of them changes. */
export function cardProps(task: TaskCard, view: BoardView): Omit<CardProps, "task" | "tabStop"> {
  const project = view.projects.get(task.projectId);
  const name = agentOf(task, project);
  const agent = name ? view.agents.get(name) : undefined;
  const sandboxId = leadingAttempt(task)?.sandboxId;
  const blockers = task.blockedBy.map((id) => view.titles.get(id) ?? "a task that is not shown").join(", ");
  return {
    project: view.several ? project?.name : undefined,
    agent: agent ? agentTitle(agent) : (name ?? undefined),
    sandbox: sandboxId ? view.sandboxes.get(sandboxId) : undefined,
    needsYou: needsPerson(task, view.asked),
    blockers: blockers || undefined,
    queuePosition: view.queuePositions.get(task.id),
  };
}
