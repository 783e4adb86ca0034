/** Interpret a closed terminal connection. */
export interface Closed {
  code: number;
  reason: string;
  /** Exit code if the shell has ended. Undefined if only the connection has closed. */
  ended?: number | null | undefined;
}

export type Outcome =
  | { kind: "again" }
  | { kind: "ended"; exitCode: number | null }
  | { kind: "failed"; reason: string };

const FINAL = [4400, 4401, 4403, 4404, 4409, 4410];

/** Decide what a closed connection means. `listed`: the shell still exists. `lost`: its sandbox failed or was destroyed. */
export function outcomeOf(closed: Closed, listed: boolean, lost: boolean): Outcome {
  if (closed.ended !== undefined) return { kind: "ended", exitCode: closed.ended };
  if (lost) return { kind: "failed", reason: "The sandbox failed or was destroyed." };
  if (FINAL.includes(closed.code))
    return { kind: "failed", reason: closed.reason || "The platform closed this shell." };
  return listed ? { kind: "again" } : { kind: "ended", exitCode: null };
}
