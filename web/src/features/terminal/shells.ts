/** The shells of a sandbox, and which one this browser tab shows. The selection survives a reload. */
import { queryOptions, useMutation, useQueryClient } from "@tanstack/react-query";
import { api, got } from "@/api/client";
import { failed } from "@/ui/toast";

export const shells = (sandboxId: string) =>
  queryOptions({
    queryKey: ["terminals", sandboxId],
    queryFn: async () =>
      (await got(api.GET("/api/v1/sandboxes/{sandbox_id}/terminals", { params: { path: { sandbox_id: sandboxId } } })))
        .items,
    staleTime: 0,
  });

const key = (sandboxId: string) => `sandyard.terminal.${sandboxId}`;

export function remembered(sandboxId: string): string | undefined {
  return sessionStorage.getItem(key(sandboxId)) ?? undefined;
}

export function remember(sandboxId: string, terminalId: string | undefined): void {
  if (terminalId) sessionStorage.setItem(key(sandboxId), terminalId);
  else sessionStorage.removeItem(key(sandboxId));
}

export function useClose(sandboxId: string) {
  const client = useQueryClient();
  return useMutation({
    mutationFn: (terminalId: string) =>
      got(
        api.DELETE("/api/v1/sandboxes/{sandbox_id}/terminals/{terminal_id}", {
          params: { path: { sandbox_id: sandboxId, terminal_id: terminalId } },
        }),
      ),
    onSettled: () => client.invalidateQueries({ queryKey: ["terminals", sandboxId] }),
    onError: failed("Could not close the shell"),
  });
}
