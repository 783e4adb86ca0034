import { type SandboxAction, useApplySandboxAction } from "@/api/queries/sandboxes";
import type { Sandbox } from "@/api/types";
import { showError } from "@/ui/toast";

/** Return whether the action is possible in this status. */
export function isAllowed(action: SandboxAction, status: Sandbox["status"]): boolean {
  switch (action) {
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

/** Apply an action to sandboxes, and report an error. */
export const useSandboxAction = () =>
  useApplySandboxAction({
    onError: (error, { action }) =>
      showError(`Could not ${action === "destroy" ? "delete" : action} the sandbox`)(error),
  });
