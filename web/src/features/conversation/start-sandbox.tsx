import { useMutation, useQueryClient } from "@tanstack/react-query";
import { api, got } from "@/api/client";
import { Button, type ButtonProps } from "@/ui/button";
import { failed } from "@/ui/toast";

/** Start a new sandbox for a session that has none. */
export function StartSandbox({ sessionId, ...look }: { sessionId: string } & Pick<ButtonProps, "size" | "look">) {
  const client = useQueryClient();
  const start = useMutation({
    mutationFn: () =>
      got(api.POST("/api/v1/sessions/{session_id}/provision", { params: { path: { session_id: sessionId } } })),
    onSuccess: (made) => client.setQueryData(["session", sessionId], made),
    onError: failed("Could not start a sandbox"),
  });
  return (
    <Button {...look} busy={start.isPending} onClick={() => start.mutate()}>
      Start new sandbox
    </Button>
  );
}
