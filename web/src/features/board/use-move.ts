import { type QueryClient, useMutation, useQueryClient } from "@tanstack/react-query";
import { api, got } from "@/api/client";
import type { Column, Task } from "@/api/types";
import { failed } from "@/ui/toast";
import { moved } from "./order";

export interface Move {
  task: Task;
  to: Column;
  /** Its place in the column; null: where new ones go. */
  at: number | null;
  feedback?: string;
  /** The focus goes along. */
  keep?: boolean;
}

function everywhere(client: QueryClient, change: (tasks: Task[]) => Task[]): void {
  client.setQueriesData<Task[]>({ queryKey: ["tasks"] }, (known) => known && change(known));
}

/**
 * A card goes at once and comes back when the platform says no, with its words. Moves reach the platform in the order in which they were
 * made, and the live refresher waits for them (the key `move`).
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
      await client.cancelQueries({ queryKey: ["tasks"] }); // an older list would put it back
      everywhere(client, (tasks) => moved(tasks, task.id, to, at));
      return { status: task.status, position: task.position };
    },
    onSuccess: (card) => {
      client.setQueryData(["task", card.id], card);
      everywhere(client, (tasks) =>
        tasks.map((one) => (one.id === card.id ? { ...card, position: one.position } : one)),
      );
    },
    onError: (error, move, before) => {
      if (before) everywhere(client, (tasks) => moved(tasks, move.task.id, before.status, before.position));
      failed(`Could not move “${move.task.title}”`)(error);
      refused(move, error.message);
      void client.invalidateQueries({ queryKey: ["tasks"] });
    },
  });
}
