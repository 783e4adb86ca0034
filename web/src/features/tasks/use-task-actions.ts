import { useCurrentUser } from "@/api/queries/account";
import { useAgents } from "@/api/queries/agents";
import { useProjects } from "@/api/queries/projects";
import { useDeleteTask, useMoveTask, useRetryTask, useStopTask, useUpdateTask } from "@/api/queries/tasks";
import type { TaskCard } from "@/api/types";
import { agentTitle, mayChangeWork, nextAgent } from "@/model/task-facts";
import { showError } from "@/ui/toast";

/** The actions on a task outside the board, which report their errors. */
export function useTaskActions() {
  const move = useMoveTask({ onError: showError("Could not move the task") });
  const stop = useStopTask({ onError: showError("Could not stop the task") });
  const retry = useRetryTask({ onError: showError("Could not retry the task") });
  const update = useUpdateTask({ onError: showError("Could not update the task") });
  const remove = useDeleteTask({ onError: showError("Could not delete the task") });
  return { move, stop, retry, update, remove };
}

/** Whether the user may change the task's title, instructions, agents and budget. The same rule as the platform's. */
export function useMayChangeWork(task: TaskCard): boolean {
  const user = useCurrentUser();
  const project = useProjects().data?.find((candidate) => candidate.id === task.projectId);
  return mayChangeWork(task, user, project);
}

/** Return the label of the retry button. It names the agent if the retry switches to another one. */
export function useRetryLabel(task: TaskCard): string {
  const project = useProjects().data?.find((candidate) => candidate.id === task.projectId);
  const name = nextAgent(task, project);
  const agent = useAgents().data?.find((candidate) => candidate.name === name);
  if (task.status === "done") return "Start over";
  return name ? `Retry with ${agent ? agentTitle(agent) : name}` : "Retry";
}
