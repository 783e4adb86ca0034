/** The results of connection tests, which are part of some errors. */
import { hasCode, type Schemas } from "@/api/client";

export type ConnectionReport = Schemas["ConnectionReport"];

/** Return the findings of a failed connection test; null if the error has another cause. */
export function findingsOf(error: unknown): ConnectionReport["findings"] | null {
  if (!hasCode(error, "connection_test_failed")) return null;
  const found = (error.problem as { findings?: ConnectionReport["findings"] }).findings;
  return Array.isArray(found) ? found : [];
}

/**
 * Return the first failure of a connection test for one form field (`token`); undefined if there is none. Further failures of the field
 * often have the same cause.
 */
export function findingAt(error: unknown, field: string): string | undefined {
  return findingsOf(error)?.find((finding) => !finding.ok && finding.field === field)?.detail;
}
