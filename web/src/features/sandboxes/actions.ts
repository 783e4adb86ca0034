import { useMutation, useQueryClient } from "@tanstack/react-query";
import { api, got } from "@/api/client";
import type { Sandbox } from "@/api/types";
import { failed } from "@/ui/toast";

export type Verb = "pause" | "resume" | "fork" | "destroy";

const CALLS: Record<Verb, (id: string) => Promise<Sandbox | undefined>> = {
  pause: (id) => got(api.POST("/api/v1/sandboxes/{sandbox_id}/pause", { params: { path: { sandbox_id: id } } })),
  resume: (id) => got(api.POST("/api/v1/sandboxes/{sandbox_id}/resume", { params: { path: { sandbox_id: id } } })),
  fork: (id) => got(api.POST("/api/v1/sandboxes/{sandbox_id}/fork", { params: { path: { sandbox_id: id } } })),
  destroy: async (id) => {
    await got(api.DELETE("/api/v1/sandboxes/{sandbox_id}", { params: { path: { sandbox_id: id } } }));
    return undefined;
  },
};

/** Return whether the action is possible in this status. */
export function allows(verb: Verb, status: Sandbox["status"]): boolean {
  switch (verb) {
    case "pause":
      return status === "running";
    case "resume":
      return status === "paused";
    case "fork":
      return status === "running" || status === "paused";
    case "destroy":
      return status !== "destroyed";
  }
}

/** A mutation that applies an action to one or more sandboxes. All are tried; the first failure is reported. */
export function useVerb(verb: Verb) {
  const client = useQueryClient();
  return useMutation({
    mutationFn: async (ids: string[]) => {
      const results = await Promise.allSettled(ids.map((id) => CALLS[verb](id)));
      const wrong = results.find((one) => one.status === "rejected");
      if (wrong) throw wrong.reason;
      return results.map((one) => (one.status === "fulfilled" ? one.value : undefined));
    },
    onSettled: (_data, _error, ids) => {
      void client.invalidateQueries({ queryKey: ["sandboxes"] });
      for (const id of ids) void client.invalidateQueries({ queryKey: ["sandbox", id] });
    },
    onError: failed(`Could not ${verb} the sandbox`),
  });
}
