import { toast } from "sonner";
import { words } from "./states";

export { toast };

/** For `onError` of a mutation: what was tried, and the platform's own words. */
export function failed(what: string): (error: unknown) => void {
  return (error) => toast.error(what, { description: words(error), duration: 10_000 });
}
