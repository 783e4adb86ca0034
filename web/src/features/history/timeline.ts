/** A branch as a timeline of commits, checkpoints, pushes and its base. Pure. */
import type { Checkpoint, Commit } from "@/api/types";

export type Entry =
  | { kind: "commit"; key: string; commit: Commit; newest: boolean; pushed: boolean; pushedHere: boolean }
  | { kind: "checkpoints"; key: string; checkpoints: Checkpoint[] }
  | { kind: "base"; key: string };

export interface Line {
  commits: Commit[];
  /** There are older commits that are not loaded, so the base is not included. */
  more: boolean;
  checkpoints: Checkpoint[];
  pushed: string | null;
}

/** Return the entries, newest first. A checkpoint is placed above the commit it is based on, or by time if that commit is not included. */
export function timeline({ commits, more, checkpoints, pushed }: Line): Entry[] {
  const known = new Set(commits.map((commit) => commit.id));
  const above = new Map<string, Checkpoint[]>();
  for (const checkpoint of [...checkpoints].sort((a, b) => b.createdAt.localeCompare(a.createdAt))) {
    const at = known.has(checkpoint.head)
      ? checkpoint.head
      : (commits.find((commit) => commit.committedAt <= checkpoint.createdAt)?.id ?? "");
    above.set(at, [...(above.get(at) ?? []), checkpoint]);
  }
  const entries: Entry[] = [];
  const keep = (at: string) => {
    const found = above.get(at);
    if (found) entries.push({ kind: "checkpoints", key: `above:${at}`, checkpoints: found });
  };
  let met = false;
  commits.forEach((commit, index) => {
    keep(commit.id);
    const pushedHere = commit.id === pushed;
    met ||= pushedHere;
    entries.push({ kind: "commit", key: commit.id, commit, newest: index === 0, pushed: met, pushedHere });
  });
  if (!more) {
    keep("");
    entries.push({ kind: "base", key: "base" });
  }
  return entries;
}

export const REASONS: Record<Checkpoint["reason"], string> = {
  asked: "Saved manually",
  pause: "Before a pause",
  destroy: "Before the sandbox was deleted",
  push: "Before a push",
  update: "Before an update",
  discard: "Before changes were discarded",
  restore: "Before another checkpoint was restored",
  turn: "After an agent turn",
};
