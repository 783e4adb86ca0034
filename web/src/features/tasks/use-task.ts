import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { without } from "@/api/board-data";
import { changeCards } from "@/api/cards";
import { api, got } from "@/api/client";
import { agents, projects } from "@/api/queries";
import type { Column, Task, TaskCard } from "@/api/types";
import { failed } from "@/ui/toast";
import { agentTitle, nextAgent } from "./card-facts";
import { whenStopped } from "./deleting";

/** The actions on a task outside the board. Each returns the updated card, which is shown immediately. */
export function useTaskVerbs(task: Task) {
  const client = useQueryClient();
  const path = { task_id: task.id };
  const shown = (card: Task) => {
    client.setQueryData(["task", task.id], card);
    changeCards(client, (cards) => cards.map((one) => (one.id === card.id ? { ...one, ...card } : one)));
  };
  const move = useMutation({
    mutationFn: (body: { status: Column; feedback?: string }) =>
      got(api.POST("/api/v1/tasks/{task_id}/move", { params: { path }, body })),
    onSuccess: shown,
    onError: failed("Could not move the task"),
  });
  const stop = useMutation({
    mutationFn: () => got(api.POST("/api/v1/tasks/{task_id}/stop", { params: { path } })),
    onSuccess: shown,
    onError: failed("Could not stop the task"),
  });
  const retry = useMutation({
    mutationFn: () => got(api.POST("/api/v1/tasks/{task_id}/retry", { params: { path } })),
    onSuccess: shown,
    onError: failed("Could not retry the task"),
  });
  const change = useMutation({
    mutationFn: (body: { title?: string; description?: string; start?: boolean }) =>
      got(api.PATCH("/api/v1/tasks/{task_id}", { params: { path }, body })),
    onSuccess: shown,
    onError: failed("Could not update the task"),
  });
  const remove = useMutation({
    ...whenStopped,
    mutationFn: () => got(api.DELETE("/api/v1/tasks/{task_id}", { params: { path } })),
    onSuccess: () => changeCards(client, without(task.id)),
    onError: failed("Could not delete the task"),
  });
  return { move, stop, retry, change, remove };
}

/** Return the label of the retry button. It names the agent if the retry switches to another one. */
export function useRetryLabel(task: TaskCard): string {
  const project = useQuery(projects).data?.find((one) => one.id === task.projectId);
  const name = nextAgent(task, project);
  const agent = useQuery(agents).data?.find((one) => one.name === name);
  if (task.status === "done") return "Start over";
  return name ? `Retry with ${agent ? agentTitle(agent) : name}` : "Retry";
}
