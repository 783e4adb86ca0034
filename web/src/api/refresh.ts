/** Mark cached queries as stale, so that those which are shown are read again. */
import { type QueryClient, type QueryKey, useQueryClient } from "@tanstack/react-query";
import { useCallback } from "react";
import { keys } from "./keys";

/** Invalidate all queries whose keys begin with one of these. The promise resolves when they were read again. */
export function invalidate(client: QueryClient, ...prefixes: QueryKey[]): Promise<unknown> {
  return Promise.all(prefixes.map((queryKey) => client.invalidateQueries({ queryKey })));
}

function useRefresh(keyOf: (sandboxId: string) => QueryKey, sandboxId: string): () => Promise<void> {
  const client = useQueryClient();
  return useCallback(() => client.invalidateQueries({ queryKey: keyOf(sandboxId) }), [client, keyOf, sandboxId]);
}

/** Return a function that reads the state of a sandbox's checkout again. */
export const useRefreshGit = (sandboxId: string) => useRefresh(keys.git, sandboxId);
/** Return a function that reads the folders of a sandbox again. */
export const useRefreshFiles = (sandboxId: string) => useRefresh(keys.files, sandboxId);
/** Return a function that reads the list of a sandbox's shells again. */
export const useRefreshTerminals = (sandboxId: string) => useRefresh(keys.terminals, sandboxId);
