/** MCP servers of a project. */
import { useQuery } from "@tanstack/react-query";
import { api, type Schemas, unwrap } from "../client";
import { keys } from "../keys";
import { defineMutation } from "../mutation";
import type { McpServer } from "../types";

const pathOf = ({ projectId, id }: Pick<McpServer, "projectId" | "id">) => ({
  params: { path: { project_id: projectId, server_id: id } },
});

export const useMcpServers = (projectId: string) =>
  useQuery({
    queryKey: keys.mcpServers(projectId),
    queryFn: async () => {
      const params = { path: { project_id: projectId } };
      return (await unwrap(api.GET("/api/v1/projects/{project_id}/mcp-servers", { params }))).items;
    },
  });

interface ServerDraft {
  projectId: string;
  /** Undefined for a new server. */
  id: string | undefined;
  body: Schemas["NewMcpServer"];
}

export const useSaveMcpServer = defineMutation({
  request: ({ projectId, id, body }: ServerDraft) =>
    id === undefined
      ? unwrap(
          api.POST("/api/v1/projects/{project_id}/mcp-servers", { params: { path: { project_id: projectId } }, body }),
        )
      : unwrap(
          api.PATCH("/api/v1/projects/{project_id}/mcp-servers/{server_id}", { ...pathOf({ projectId, id }), body }),
        ),
  onSuccess: (client, _, { projectId }) => void client.invalidateQueries({ queryKey: keys.mcpServers(projectId) }),
});

export const useTestMcpServer = defineMutation({
  request: (server: McpServer) =>
    unwrap(api.POST("/api/v1/projects/{project_id}/mcp-servers/{server_id}/test", pathOf(server))),
});

export const useDeleteMcpServer = defineMutation({
  request: (server: McpServer) =>
    unwrap(api.DELETE("/api/v1/projects/{project_id}/mcp-servers/{server_id}", pathOf(server))),
  onSuccess: (client, _, { projectId }) => client.invalidateQueries({ queryKey: keys.mcpServers(projectId) }),
});
