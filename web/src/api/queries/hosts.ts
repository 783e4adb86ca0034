/** The machines that run sandboxes. Only administrators may see them. */
import { useQuery } from "@tanstack/react-query";
import { api, type Schemas, unwrap } from "../client";
import { keys } from "../keys";
import { defineMutation } from "../mutation";

const REFRESH_MS = 5000;

export const useHosts = () =>
  useQuery({
    queryKey: keys.hosts(),
    queryFn: () => unwrap(api.GET("/api/v1/hosts")),
    refetchInterval: (query) => (query.state.status === "error" ? false : REFRESH_MS),
    staleTime: 0,
    retry: false,
  });

export const useUpdateHost = defineMutation({
  request: ({ id, ...body }: Schemas["HostChange"] & { id: string }) =>
    unwrap(api.PATCH("/api/v1/hosts/{host_id}", { params: { path: { host_id: id } }, body })),
  onSettled: (client) => client.invalidateQueries({ queryKey: keys.hosts() }),
});

export const useRecoverHost = defineMutation({
  request: (id: string) => unwrap(api.POST("/api/v1/hosts/{host_id}/recover", { params: { path: { host_id: id } } })),
  onSettled: (client) => client.invalidateQueries({ queryKey: keys.hosts() }),
});

export const useCreateJoinToken = defineMutation({ request: () => unwrap(api.POST("/api/v1/hosts/tokens")) });
