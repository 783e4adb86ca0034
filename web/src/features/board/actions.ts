import { useMutation } from "@tanstack/react-query";
import { createContext, type RefObject, useCallback, useContext, useMemo, useRef, useState } from "react";
import { api, got } from "@/api/client";
import type { Column, TaskCard } from "@/api/types";
import { running } from "@/features/tasks/card-facts";
import { COLUMNS } from "@/lib/status";
import { failed } from "@/ui/toast";
import { type Move, useMove } from "./use-move";

/** The actions of a card. The object is stable, so that cards do not re-render because of it. */
export interface Actions {
  /** Move the card. Asks for feedback if needed, and for confirmation before stopping an agent. `keep`: focus follows the card. */
  move: (task: TaskCard, to: Column, at: number | null, keep?: boolean) => void;
  /** Cancel the task after confirmation. */
  cancel: (task: TaskCard) => void;
  retry: (task: TaskCard) => void;
  /** Set whether a task in the backlog starts automatically as soon as it can. */
  startWhenReady: (task: TaskCard, on: boolean) => void;
  edit: (task: TaskCard) => void;
  remove: (task: TaskCard) => void;
  /** Open the task's page, or one of its tabs. */
  open: (task: TaskCard, tab?: string) => void;
  /** Open the card's menu at the button. */
  menu: (task: TaskCard, button: HTMLElement) => void;
  /** Handle keyboard navigation between cards. */
  key: (task: TaskCard, event: React.KeyboardEvent) => void;
}

export const ActionsContext = createContext<Actions | null>(null);

export function useActions(): Actions {
  const actions = useContext(ActionsContext);
  if (!actions) throw new Error("useActions must be used inside a board.");
  return actions;
}

/** The dialog that is open before an action. */
export type Asking =
  | { kind: "feedback"; move: Move }
  | { kind: "edit"; task: TaskCard }
  | { kind: "delete"; task: TaskCard }
  | { kind: "cancel"; task: TaskCard; run: () => void };

type Verb = "stop" | "retry";

export type Follow = RefObject<{ id: string; column: Column } | null>;

/** `follow`: the card that gets the focus as soon as it appears in that column. */
export function useBoardActions(announce: (words: string) => void, follow: Follow) {
  const [asking, ask] = useState<Asking | null>(null);
  const { mutate } = useMove((move, words) => {
    if (move.keep) follow.current = { id: move.task.id, column: move.task.status };
    announce(`${move.task.title} is back in ${COLUMNS[move.task.status].text}. ${words}`);
  });
  const underWay = useRef(new Set<string>());

  const verb = useMutation({
    mutationFn: ({ task, verb }: { task: TaskCard; verb: Verb }) => {
      const params = { path: { task_id: task.id } };
      return got(
        verb === "stop"
          ? api.POST("/api/v1/tasks/{task_id}/stop", { params })
          : api.POST("/api/v1/tasks/{task_id}/retry", { params }),
      );
    },
    onSettled: (_, __, { task, verb }) => underWay.current.delete(`${verb} ${task.id}`),
    onError: (error, { task, verb }) =>
      failed(`Could not ${verb === "stop" ? "cancel" : "retry"} “${task.title}”`)(error),
  });
  const waiting = useMutation({
    mutationFn: ({ task, on }: { task: TaskCard; on: boolean }) =>
      got(api.PATCH("/api/v1/tasks/{task_id}", { params: { path: { task_id: task.id } }, body: { start: on } })),
    onError: (error, { task }) => failed(`Could not update “${task.title}”`)(error),
  });

  const run = useCallback(
    (move: Move) => {
      if (move.keep) follow.current = { id: move.task.id, column: move.to };
      mutate(move);
      const same = move.to === move.task.status;
      announce(
        same
          ? `${move.task.title}: position ${(move.at ?? 0) + 1}`
          : `${move.task.title} moved to ${COLUMNS[move.to].text}`,
      );
    },
    [mutate, announce, follow],
  );

  const { mutate: act } = verb;
  const { mutate: wait } = waiting;
  const actions = useMemo<Omit<Actions, "key" | "menu" | "open">>(() => {
    const once = (task: TaskCard, verb: Verb) => {
      const name = `${verb} ${task.id}`;
      if (underWay.current.has(name)) return;
      underWay.current.add(name);
      act({ task, verb });
      announce(`${task.title}: ${verb === "stop" ? "stopping" : "retrying"}`);
    };
    return {
      move: (task, to, at, keep = false) => {
        if (task.status === "in_review" && to === "in_progress")
          ask({ kind: "feedback", move: { task, to, at, keep } });
        else if (to === "cancelled" && running(task))
          ask({ kind: "cancel", task, run: () => run({ task, to, at, keep }) });
        else run({ task, to, at, keep });
      },
      cancel: (task) => ask({ kind: "cancel", task, run: () => once(task, "stop") }),
      retry: (task) => once(task, "retry"),
      startWhenReady: (task, on) => wait({ task, on }),
      edit: (task) => ask({ kind: "edit", task }),
      remove: (task) => ask({ kind: "delete", task }),
    };
  }, [run, act, wait, announce]);
  return { actions, asking, ask, run };
}
