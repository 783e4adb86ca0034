/** Errors of single form fields. */
import { ApiError } from "@/api/client";

/** Return the platform's error for a field (`settings.agent.stuckMinutes`) or anything inside it; undefined if there is none. */
export function fieldError(error: unknown, field: string): string | undefined {
  if (!(error instanceof ApiError)) return undefined;
  const found = error.problem.errors?.find(
    (candidate) => candidate.field === field || candidate.field.startsWith(`${field}.`),
  );
  return found && `${found.message.charAt(0).toUpperCase()}${found.message.slice(1)}`.replace(/\.?$/, ".");
}

/** Return the error message for a whole form. Errors of single fields are shown beside the fields and not repeated. */
export function formError(error: unknown): string {
  if (error instanceof ApiError && error.problem.errors?.length) return "Fix the highlighted fields.";
  return error instanceof Error ? error.message : String(error);
}
