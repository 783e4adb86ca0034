/** Agents and their tests. */
import { queryOptions, useQuery } from "@tanstack/react-query";
import { api, type Schemas, unwrap } from "../client";
import { keys } from "../keys";
import { defineMutation } from "../mutation";
import type { PlatformEvent } from "../types";

const agentsQuery = queryOptions({
  queryKey: keys.agents(),
  queryFn: async () => (await unwrap(api.GET("/api/v1/agents"))).items,
});

export const useAgents = () => useQuery(agentsQuery);

interface AgentDraft {
  name: string;
  /** False for a new agent. */
  exists: boolean;
  body: Schemas["AgentChange"];
}

export const useSaveAgent = defineMutation({
  request: ({ name, exists, body }: AgentDraft) =>
    exists
      ? unwrap(api.PUT("/api/v1/agents/{agent_name}", { params: { path: { agent_name: name } }, body }))
      : unwrap(api.POST("/api/v1/agents", { body: { ...body, name } })),
  onSuccess: (client) => void client.invalidateQueries({ queryKey: keys.agents() }),
});

export const useDeleteAgent = defineMutation({
  request: (name: string) =>
    unwrap(api.DELETE("/api/v1/agents/{agent_name}", { params: { path: { agent_name: name } } })),
  onSuccess: (client) => client.invalidateQueries({ queryKey: keys.agents() }),
});

/** Test an agent in the background. Returns the session whose events tell the progress. */
export const useStartAgentTest = defineMutation({
  request: async (name: string) => {
    const params = { path: { agent_name: name } };
    const started = await unwrap(api.POST("/api/v1/agents/{agent_name}/test", { params, body: { background: true } }));
    return (started as { sessionId: string }).sessionId;
  },
});

/** Read the events of a session that happened before now. */
export async function readSessionEvents(sessionId: string): Promise<PlatformEvent[]> {
  return (await unwrap(api.GET("/api/v1/events/history", { params: { query: { sessionId, limit: 200 } } }))).items;
}
