import { useMutation, useQueryClient } from "@tanstack/react-query";
import { changeCards } from "@/api/cards";
import { api, got } from "@/api/client";
import type { Column, TaskCard } from "@/api/types";
import { failed } from "@/ui/toast";
import { moved } from "./order";

export interface Move {
  task: TaskCard;
  to: Column;
  /** The place in the column; null means where new cards go. */
  at: number | null;
  feedback?: string;
  /** Called when the platform has accepted the feedback. */
  sent?: () => void;
  /** Focus follows the card. */
  keep?: boolean;
}

/**
 * Move a card optimistically, and move it back with the error message if the platform rejects it. Moves are sent one at a time in order,
 * and the live refresh waits for them (mutation key `move`).
 */
export function useMove(refused: (move: Move, words: string) => void) {
  const client = useQueryClient();
  return useMutation({
    mutationKey: ["move"],
    scope: { id: "move" },
    mutationFn: ({ task, to, at, feedback }: Move) =>
      got(
        api.POST("/api/v1/tasks/{task_id}/move", {
          params: { path: { task_id: task.id } },
          body: { status: to, position: at, feedback: feedback ?? null },
        }),
      ),
    onMutate: async ({ task, to, at }) => {
      for (const noun of ["tasks", "board"]) await client.cancelQueries({ queryKey: [noun] }); // An older list would undo the move.
      changeCards(client, (cards) => moved(cards, task.id, to, at));
      return { status: task.status, position: task.position };
    },
    onSuccess: (card, move) => {
      move.sent?.();
      client.setQueryData(["task", card.id], card);
      changeCards(client, (cards) =>
        cards.map((one) => (one.id === card.id ? { ...one, ...card, position: one.position } : one)),
      );
    },
    onError: (error, move, before) => {
      if (before) changeCards(client, (cards) => moved(cards, move.task.id, before.status, before.position));
      failed(`Could not move “${move.task.title}”`)(error);
      refused(move, error.message);
      for (const noun of ["tasks", "board"]) void client.invalidateQueries({ queryKey: [noun] });
    },
  });
}
