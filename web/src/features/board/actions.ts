import { createContext, type RefObject, useCallback, useContext, useMemo, useRef, useState } from "react";
import { type Move, useMoveCard } from "@/api/queries/board";
import { useRetryTask, useStopTask, useUpdateTask } from "@/api/queries/tasks";
import type { Column, TaskCard } from "@/api/types";
import { COLUMNS } from "@/model/status-labels";
import { isRunning } from "@/model/task-facts";
import { showError } from "@/ui/toast";

/** The actions of a card. The object is stable, so that cards do not re-render because of it. */
export interface Actions {
  /** Move the card. Asks for feedback if needed, and for confirmation before stopping an agent. `keepFocus`: focus follows the card. */
  move: (task: TaskCard, to: Column, at: number | null, keepFocus?: boolean) => void;
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
  openMenu: (task: TaskCard, button: HTMLElement) => void;
  /** Handle keyboard navigation between cards. */
  handleKey: (task: TaskCard, event: React.KeyboardEvent) => void;
}

export const ActionsContext = createContext<Actions | null>(null);

export function useActions(): Actions {
  const actions = useContext(ActionsContext);
  if (!actions) throw new Error("useActions must be used inside a board.");
  return actions;
}

/** The dialog that is open before an action. */
export type CardDialog =
  | { kind: "feedback"; move: Move }
  | { kind: "edit"; task: TaskCard }
  | { kind: "delete"; task: TaskCard }
  | { kind: "cancel"; task: TaskCard; run: () => void };

export type FocusRequest = RefObject<{ id: string; column: Column } | null>;

/** `focusRequest`: the card that gets the focus as soon as it appears in that column. */
export function useBoardActions(announce: (text: string) => void, focusRequest: FocusRequest) {
  const [dialog, setDialog] = useState<CardDialog | null>(null);
  const { mutate } = useMoveCard({
    onError: (error, move) => {
      showError(`Could not move “${move.task.title}”`)(error);
      if (move.keepFocus) focusRequest.current = { id: move.task.id, column: move.task.status };
      announce(`${move.task.title} is back in ${COLUMNS[move.task.status].text}. ${error.message}`);
    },
  });
  const pending = useRef(new Set<string>());
  const titles = useRef(new Map<string, string>());
  const report = (verb: string, id: string) => showError(`Could not ${verb} “${titles.current.get(id)}”`);
  const { mutate: stop } = useStopTask({
    onError: (error, id) => report("cancel", id)(error),
    onSettled: (id) => pending.current.delete(`stop ${id}`),
  });
  const { mutate: retry } = useRetryTask({
    onError: (error, { id }) => report("retry", id)(error),
    onSettled: ({ id }) => pending.current.delete(`retry ${id}`),
  });
  const { mutate: update } = useUpdateTask({ onError: (error, { id }) => report("update", id)(error) });

  const run = useCallback(
    (move: Move) => {
      if (move.keepFocus) focusRequest.current = { id: move.task.id, column: move.to };
      mutate(move);
      const same = move.to === move.task.status;
      announce(
        same
          ? `${move.task.title}: position ${(move.at ?? 0) + 1}`
          : `${move.task.title} moved to ${COLUMNS[move.to].text}`,
      );
    },
    [mutate, announce, focusRequest],
  );

  const actions = useMemo<Omit<Actions, "handleKey" | "openMenu" | "open">>(() => {
    /** Send a request unless the same one is under way. */
    const sendOnce = (verb: "stop" | "retry", task: TaskCard, send: () => void) => {
      const name = `${verb} ${task.id}`;
      if (pending.current.has(name)) return;
      pending.current.add(name);
      titles.current.set(task.id, task.title);
      send();
      announce(`${task.title}: ${verb === "stop" ? "stopping" : "retrying"}`);
    };
    return {
      move: (task, to, at, keepFocus = false) => {
        if (task.status === "in_review" && to === "in_progress")
          setDialog({ kind: "feedback", move: { task, to, at, keepFocus } });
        else if (to === "cancelled" && isRunning(task))
          setDialog({ kind: "cancel", task, run: () => run({ task, to, at, keepFocus }) });
        else run({ task, to, at, keepFocus });
      },
      cancel: (task) => setDialog({ kind: "cancel", task, run: () => sendOnce("stop", task, () => stop(task.id)) }),
      retry: (task) => sendOnce("retry", task, () => retry({ id: task.id })),
      startWhenReady: (task, on) => {
        titles.current.set(task.id, task.title);
        update({ id: task.id, start: on });
      },
      edit: (task) => setDialog({ kind: "edit", task }),
      remove: (task) => setDialog({ kind: "delete", task }),
    };
  }, [run, stop, retry, update, announce]);
  return { actions, dialog, setDialog, run };
}
