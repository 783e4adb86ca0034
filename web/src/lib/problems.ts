/** What the platform says about single fields. */
import { ApiError } from "@/api/client";

/** The platform's word about a field (`settings.agent.stuckMinutes`) or anything within it; undefined: it has none. */
export function fault(error: unknown, field: string): string | undefined {
  if (!(error instanceof ApiError)) return undefined;
  const found = error.problem.errors?.find((one) => one.field === field || one.field.startsWith(`${field}.`));
  return found && `${found.message.charAt(0).toUpperCase()}${found.message.slice(1)}`.replace(/\.?$/, ".");
}

/** A sentence for the whole of a form: what is wrong with single fields is said beside them, and not twice. */
export function overall(error: unknown): string {
  if (error instanceof ApiError && error.problem.errors?.length) return "Not stored: look at what is marked.";
  return error instanceof Error ? error.message : String(error);
}
