/** Tasks, their attempts and the queue. */
import { keepPreviousData, type QueryClient, queryOptions, useQuery, useQueryClient } from "@tanstack/react-query";
import { useCallback } from "react";
import { removeCard } from "../board-data";
import { ApiError, api, readAllPages, type Schemas, unwrap } from "../client";
import { keys } from "../keys";
import { defineMutation } from "../mutation";
import { invalidate } from "../refresh";
import type { Task } from "../types";
import { updateCachedCards } from "./board";

const pathOf = (id: string) => ({ params: { path: { task_id: id } } });

/** All tasks that the caller may see, of one project or of all. */
export const useTasks = (projectId: string | undefined, options: { enabled?: boolean } = {}) =>
  useQuery({
    queryKey: keys.tasks(projectId),
    queryFn: () =>
      readAllPages((cursor) =>
        unwrap(api.GET("/api/v1/tasks", { params: { query: { projectId, cursor, limit: 200 } } })),
      ),
    ...options,
  });

export const readTask = (id: string): Promise<Task> => unwrap(api.GET("/api/v1/tasks/{task_id}", pathOf(id)));

export const taskQuery = (id: string) => queryOptions({ queryKey: keys.task(id), queryFn: () => readTask(id) });

export const useTask = (id: string, options: { enabled?: boolean } = {}) => useQuery({ ...taskQuery(id), ...options });

/** Return a function that reads a task, from the cache if it is there. */
export function useReadTask(): (id: string) => Promise<Task> {
  const client = useQueryClient();
  return useCallback((id) => client.ensureQueryData(taskQuery(id)), [client]);
}

const countsQuery = queryOptions({
  queryKey: keys.taskCounts(),
  queryFn: async () => (await unwrap(api.GET("/api/v1/tasks/counts"))).items,
  select: (items) => new Map(items.map((count) => [count.projectId, count])),
});

/** Number of cards per column and of failed cards, by project. Empty columns are omitted. */
export const useTaskCounts = () => useQuery(countsQuery);

/** The first tasks whose title or description matches the text. */
export const useTaskSearch = (text: string) =>
  useQuery({
    queryKey: keys.taskSearch(text),
    queryFn: async () => {
      const query = { limit: 100, ...(text ? { q: text.slice(0, 200) } : {}) };
      return (await unwrap(api.GET("/api/v1/tasks", { params: { query } }))).items;
    },
    placeholderData: keepPreviousData,
  });

/** The queued attempts, in order. */
export const useQueue = () =>
  useQuery({ queryKey: keys.queue(), queryFn: async () => (await unwrap(api.GET("/api/v1/queue"))).items });

/** Show a task as the platform returned it, without waiting for its events. */
function showTask(client: QueryClient, task: Task): void {
  client.setQueryData(taskQuery(task.id).queryKey, task);
  updateCachedCards(client, (cards) => cards.map((card) => (card.id === task.id ? { ...card, ...task } : card)));
}

type TaskDraft = { id: string; body: Schemas["TaskChange"] } | { id?: undefined; body: Schemas["NewTask"] };

const updateTask = ({ id, ...body }: Schemas["TaskChange"] & { id: string }): Promise<Task> =>
  unwrap(api.PATCH("/api/v1/tasks/{task_id}", { ...pathOf(id), body }));

/** Create a task, or change one in its form. */
export const useSaveTask = defineMutation({
  request: (draft: TaskDraft): Promise<Task> =>
    draft.id === undefined
      ? unwrap(api.POST("/api/v1/tasks", { body: draft.body }))
      : updateTask({ id: draft.id, ...draft.body }),
  onSuccess: (client, task) => {
    client.setQueryData(taskQuery(task.id).queryKey, task);
    void invalidate(client, keys.allTasks(), keys.boards(), keys.taskCounts());
  },
});

export const useUpdateTask = defineMutation({ request: updateTask, onSuccess: showTask });

export const moveTask = ({ id, ...body }: Schemas["Move"] & { id: string }): Promise<Task> =>
  unwrap(api.POST("/api/v1/tasks/{task_id}/move", { ...pathOf(id), body }));

export const useMoveTask = defineMutation({ request: moveTask, onSuccess: showTask });

export const useStopTask = defineMutation({
  request: (id: string): Promise<Task> => unwrap(api.POST("/api/v1/tasks/{task_id}/stop", pathOf(id))),
  onSuccess: showTask,
});

export const retryTask = ({ id, ...body }: Partial<Schemas["Retry"]> & { id: string }): Promise<Task> =>
  unwrap(api.POST("/api/v1/tasks/{task_id}/retry", { ...pathOf(id), ...(Object.keys(body).length > 0 && { body }) }));

export const useRetryTask = defineMutation({ request: retryTask, onSuccess: showTask });

const DELETE_TRIES = 60;

/** Delete a task. The platform answers `conflict` until its running attempts have stopped, so the request is repeated. */
export const useDeleteTask = defineMutation({
  request: (id: string) => unwrap(api.DELETE("/api/v1/tasks/{task_id}", pathOf(id))),
  retry: (count, error) => count < DELETE_TRIES && error instanceof ApiError && error.code === "conflict",
  retryDelay: 500,
  onSuccess: (client, _, id) => updateCachedCards(client, removeCard(id)),
});

/** Pick one of the attempts of a task; the others are archived. */
export const usePickAttempt = defineMutation({
  request: ({ id, attemptId }: { id: string; attemptId: string }): Promise<Task> =>
    unwrap(api.POST("/api/v1/tasks/{task_id}/pick", { ...pathOf(id), body: { attemptId } })),
  onSuccess: (client, task) => void client.setQueryData(taskQuery(task.id).queryKey, task),
});
