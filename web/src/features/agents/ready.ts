import type { Agent } from "@/api/types";
import { agentTitle } from "@/features/tasks/card-facts";

/** Whether it needs a model and no provider is set up that it can use, for everybody or in this project. */
export function needsKey(agent: Agent, projectId?: string | null): boolean {
  return !agent.modelReady && !(projectId && agent.modelProjects.includes(projectId));
}

/** Its title as pickers show it: marked where it cannot work yet. */
export function pickerTitle(agent: Agent, projectId?: string | null): string {
  return needsKey(agent, projectId) ? `${agentTitle(agent)} · needs a key` : agentTitle(agent);
}
