/** Secrets of a project, or of the caller. Values are write-only. */
import { useQuery } from "@tanstack/react-query";
import { api, readAllPages, unwrap } from "../client";
import { keys } from "../keys";
import { defineMutation } from "../mutation";

export const useSecrets = (projectId: string | undefined) =>
  useQuery({
    queryKey: keys.secrets(projectId),
    queryFn: () =>
      readAllPages((cursor) =>
        unwrap(api.GET("/api/v1/secrets", { params: { query: { projectId, cursor, limit: 200 } } })),
      ),
  });

interface Secret {
  name: string;
  projectId: string | undefined;
}

export const useSaveSecret = defineMutation({
  request: ({ name, projectId, value }: Secret & { value: string }) =>
    unwrap(
      api.PUT("/api/v1/secrets/{name}", {
        params: { path: { name } },
        body: { value, ...(projectId && { projectId }) },
      }),
    ),
  onSuccess: (client) => void client.invalidateQueries({ queryKey: keys.allSecrets() }),
});

export const useDeleteSecret = defineMutation({
  request: ({ name, projectId }: Secret) =>
    unwrap(api.DELETE("/api/v1/secrets/{name}", { params: { path: { name }, query: { projectId } } })),
  onSuccess: (client) => client.invalidateQueries({ queryKey: keys.allSecrets() }),
});
