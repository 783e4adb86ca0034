/** Interpret a closed terminal connection. */
export interface Closed {
  code: number;
  reason: string;
  /** Exit code if the shell has ended. Undefined if only the connection has closed. */
  ended?: number | null | undefined;
}

export type Outcome =
  | { kind: "reconnect" }
  | { kind: "ended"; exitCode: number | null }
  | { kind: "failed"; reason: string };

/** Close codes after which reconnecting cannot help: 4000 plus the HTTP status of the error. */
const FINAL_CODES = [4400, 4401, 4403, 4404, 4409, 4410];

/** Decide what a closed connection means. */
export function outcomeOf(closed: Closed, shellExists: boolean, sandboxIsGone: boolean): Outcome {
  if (closed.ended !== undefined) return { kind: "ended", exitCode: closed.ended };
  if (sandboxIsGone) return { kind: "failed", reason: "The sandbox failed or was deleted." };
  if (FINAL_CODES.includes(closed.code))
    return { kind: "failed", reason: closed.reason || "The platform closed this shell." };
  return shellExists ? { kind: "reconnect" } : { kind: "ended", exitCode: null };
}
