import { toast } from "sonner";
import { errorMessage } from "./states";

export { toast };

/** Return an `onError` handler for a mutation that shows what failed and the platform's error message. */
export function showError(what: string): (error: unknown) => void {
  return (error) => toast.error(what, { description: errorMessage(error), duration: 10_000 });
}
