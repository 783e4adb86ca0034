import type { Agent, Project, Session } from "@/api/types";
import { agentTitle } from "./task-facts";

/** Return whether the agent needs a model but has no usable provider, shared or in this project. */
export function needsKey(agent: Agent, projectId?: string | null): boolean {
  return !agent.modelReady && !(projectId && agent.modelProjects.includes(projectId));
}

/** Return the title of the agent with this name; the name if the agent is not known. */
export function titleOf(name: string, agents: readonly Agent[] | undefined): string {
  const agent = agents?.find((candidate) => candidate.name === name);
  return agent ? agentTitle(agent) : name;
}

/** Return the agent's title for pickers, with a mark if it needs a key. */
export function pickerTitle(agent: Agent, projectId?: string | null): string {
  return needsKey(agent, projectId) ? `${agentTitle(agent)} · needs a key` : agentTitle(agent);
}

/** Return the agent that works in a session, or will: a session without one uses the default of its project or the platform. */
export function agentOfSession(
  session: Session,
  agents: readonly Agent[] | undefined,
  project: Project | undefined,
): Agent | undefined {
  const name = session.agent ?? project?.defaultAgent;
  return agents?.find((agent) => (name ? agent.name === name : agent.default));
}
