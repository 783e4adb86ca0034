import { toast } from "sonner";
import { words } from "./states";

export { toast };

/** Return an `onError` handler for a mutation that shows what failed and the platform's error message. */
export function failed(what: string): (error: unknown) => void {
  return (error) => toast.error(what, { description: words(error), duration: 10_000 });
}
