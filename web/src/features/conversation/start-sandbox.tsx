import { useProvisionSandbox } from "@/api/queries/sessions";
import { Button, type ButtonProps } from "@/ui/button";
import { showError } from "@/ui/toast";

/** Start a new sandbox for a session that has none. */
export function StartSandbox({ sessionId, ...look }: { sessionId: string } & Pick<ButtonProps, "size" | "look">) {
  const start = useProvisionSandbox({ onError: showError("Could not start a sandbox") });
  return (
    <Button {...look} busy={start.isPending} onClick={() => start.mutate(sessionId)}>
      Start new sandbox
    </Button>
  );
}
