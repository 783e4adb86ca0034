/** Sandboxes, their ports, metrics and shells. */
import { queryOptions, useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { api, readAllPages, unwrap } from "../client";
import { keys } from "../keys";
import { defineMutation } from "../mutation";
import { invalidate } from "../refresh";
import type { Sandbox } from "../types";

const pathOf = (id: string) => ({ params: { path: { sandbox_id: id } } });

export const readSandbox = (id: string): Promise<Sandbox> =>
  unwrap(api.GET("/api/v1/sandboxes/{sandbox_id}", pathOf(id)));

const sandboxQuery = (id: string) => queryOptions({ queryKey: keys.sandbox(id), queryFn: () => readSandbox(id) });

export const useSandbox = (id: string) => useQuery(sandboxQuery(id));

/** The visible sandboxes, loaded page by page. `all` includes those of other users. */
export const useSandboxes = (status: Sandbox["status"] | undefined, all: boolean) =>
  useInfiniteQuery({
    queryKey: keys.sandboxes({ status: status ?? null, all }),
    queryFn: ({ pageParam }) =>
      unwrap(api.GET("/api/v1/sandboxes", { params: { query: { status, all, limit: 100, cursor: pageParam } } })),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.nextCursor ?? undefined,
    select: (data) => data.pages.flatMap((page) => page.items),
  });

/** The status of all visible sandboxes by id. */
export const useSandboxStates = () => useQuery(sandboxStatesQuery);

const sandboxStatesQuery = queryOptions({
  queryKey: keys.sandboxStates(),
  queryFn: () =>
    readAllPages((cursor) =>
      unwrap(api.GET("/api/v1/sandboxes", { params: { query: { all: true, cursor, limit: 200 } } })),
    ),
  select: (list) => new Map(list.map((sandbox) => [sandbox.id, sandbox.status])),
});

export type SandboxAction = "pause" | "resume" | "fork" | "destroy";

const ACTIONS: Record<SandboxAction, (id: string) => Promise<Sandbox | undefined>> = {
  pause: (id) => unwrap(api.POST("/api/v1/sandboxes/{sandbox_id}/pause", pathOf(id))),
  resume: (id) => unwrap(api.POST("/api/v1/sandboxes/{sandbox_id}/resume", pathOf(id))),
  fork: (id) => unwrap(api.POST("/api/v1/sandboxes/{sandbox_id}/fork", pathOf(id))),
  destroy: async (id) => {
    await unwrap(api.DELETE("/api/v1/sandboxes/{sandbox_id}", pathOf(id)));
    return undefined;
  },
};

/** Apply an action to one or more sandboxes. All are tried; the first failure is reported. */
export const useApplySandboxAction = defineMutation({
  request: async ({ action, ids }: { action: SandboxAction; ids: string[] }) => {
    const results = await Promise.allSettled(ids.map((id) => ACTIONS[action](id)));
    const failure = results.find((result) => result.status === "rejected");
    if (failure) throw failure.reason;
    return results.map((result) => (result.status === "fulfilled" ? result.value : undefined));
  },
  onSettled: (client, { ids }) => void invalidate(client, keys.allSandboxes(), ...ids.map((id) => keys.sandbox(id))),
});

interface Polling {
  /** Read again every so many milliseconds; false to read once. */
  refetchInterval: number | false;
}

export const usePorts = (sandboxId: string, options: Polling) =>
  useQuery({
    queryKey: keys.ports(sandboxId),
    queryFn: () => unwrap(api.GET("/api/v1/sandboxes/{sandbox_id}/ports", pathOf(sandboxId))),
    ...options,
  });

export const useMetrics = (sandboxId: string, options: Polling) =>
  useQuery({
    queryKey: keys.metrics(sandboxId),
    queryFn: () => unwrap(api.GET("/api/v1/sandboxes/{sandbox_id}/metrics", pathOf(sandboxId))),
    ...options,
  });

/** Connections blocked by the network settings. */
export const useDeniedConnections = (sandboxId: string, options: Polling) =>
  useQuery({
    queryKey: keys.deniedConnections(sandboxId),
    queryFn: () => unwrap(api.GET("/api/v1/sandboxes/{sandbox_id}/denied", pathOf(sandboxId))),
    ...options,
  });

export async function readTerminals(sandboxId: string) {
  return (await unwrap(api.GET("/api/v1/sandboxes/{sandbox_id}/terminals", pathOf(sandboxId)))).items;
}

/** The open shells of a sandbox. */
export const useTerminals = (sandboxId: string) =>
  useQuery({ queryKey: keys.terminals(sandboxId), queryFn: () => readTerminals(sandboxId), staleTime: 0 });

export const useCloseTerminal = defineMutation({
  request: ({ sandboxId, terminalId }: { sandboxId: string; terminalId: string }) =>
    unwrap(
      api.DELETE("/api/v1/sandboxes/{sandbox_id}/terminals/{terminal_id}", {
        params: { path: { sandbox_id: sandboxId, terminal_id: terminalId } },
      }),
    ),
  onSettled: (client, { sandboxId }) => client.invalidateQueries({ queryKey: keys.terminals(sandboxId) }),
});
