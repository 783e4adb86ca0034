/** What users and projects use, next to their limits. */
import { useQuery } from "@tanstack/react-query";
import type { UserQuotas } from "@/api/types";
import { api, unwrap } from "../client";
import { keys } from "../keys";
import { defineMutation } from "../mutation";

export const useUserQuotas = (id: string) =>
  useQuery({
    queryKey: keys.quotas("users", id),
    queryFn: () => unwrap(api.GET("/api/v1/users/{user_id}/quotas", { params: { path: { user_id: id } } })),
    staleTime: 0,
  });

export const useProjectQuotas = (id: string) =>
  useQuery({
    queryKey: keys.quotas("projects", id),
    queryFn: () => unwrap(api.GET("/api/v1/projects/{project_id}/quotas", { params: { path: { project_id: id } } })),
    staleTime: 0,
  });

/** Set all limits of a user. Those that are null are the server's defaults. */
export const useSetUserQuotas = defineMutation({
  request: ({ id, quotas }: { id: string; quotas: UserQuotas }) =>
    unwrap(api.PUT("/api/v1/users/{user_id}/quotas", { params: { path: { user_id: id } }, body: quotas })),
  onSuccess: (client, state, { id }) => client.setQueryData(keys.quotas("users", id), state),
});
