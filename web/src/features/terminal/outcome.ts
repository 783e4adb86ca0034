/** What a closed connection means for the shell behind it. */
export interface Closed {
  code: number;
  reason: string;
  /** The shell has ended, with this exit code. Undefined: only the connection has. */
  ended?: number | null | undefined;
}

export type Outcome =
  | { kind: "again" }
  | { kind: "ended"; exitCode: number | null }
  | { kind: "failed"; reason: string };

const FINAL = [4400, 4401, 4403, 4404, 4409, 4410];

/** `listed`: the platform still knows the shell. `lost`: its sandbox is gone for good. */
export function outcome(closed: Closed, listed: boolean, lost: boolean): Outcome {
  if (closed.ended !== undefined) return { kind: "ended", exitCode: closed.ended };
  if (lost) return { kind: "failed", reason: "The sandbox was destroyed or has failed." };
  if (FINAL.includes(closed.code))
    return { kind: "failed", reason: closed.reason || "The platform has closed this shell." };
  return listed ? { kind: "again" } : { kind: "ended", exitCode: null };
}
