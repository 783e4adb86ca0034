import { describe, expect, it } from "vitest";
import type { Checkpoint, Commit } from "@/api/types";
import { type Entry, timeline } from "./timeline";

const commit = (id: string, minute: number) => ({ id, committedAt: `2026-01-01T10:0${minute}:00.000Z` }) as Commit;
const checkpoint = (id: string, head: string, minute: number) =>
  ({ id, head, createdAt: `2026-01-01T10:0${minute}:30.000Z` }) as Checkpoint;
const told = (entries: Entry[]) =>
  entries.map((one) =>
    one.kind === "commit"
      ? one.commit.id
      : one.kind === "base"
        ? "base"
        : one.checkpoints.map((kept) => kept.id).join("+"),
  );

const COMMITS = [commit("c3", 5), commit("c2", 3), commit("c1", 1)];

describe("timeline", () => {
  it("puts checkpoints above the commit they were made upon, the newest first", () => {
    const checkpoints = [checkpoint("k1", "c2", 3), checkpoint("k2", "c2", 4), checkpoint("k0", "base", 0)];
    const entries = timeline({ commits: COMMITS, more: false, checkpoints, pushed: "c2" });
    expect(told(entries)).toEqual(["c3", "k2+k1", "c2", "c1", "k0", "base"]);
  });

  it("knows what was pushed, and where the line goes on unseen", () => {
    const entries = timeline({ commits: COMMITS, more: true, checkpoints: [checkpoint("k0", "old", 0)], pushed: "c2" });
    expect(told(entries)).toEqual(["c3", "c2", "c1"]);
    expect(entries.map((one) => one.kind === "commit" && one.pushed)).toEqual([false, true, true]);
  });

  it("goes by time for a checkpoint whose commit was rewritten", () => {
    const entries = timeline({
      commits: COMMITS,
      more: false,
      checkpoints: [checkpoint("k", "gone", 4)],
      pushed: null,
    });
    expect(told(entries)).toEqual(["c3", "k", "c2", "c1", "base"]);
  });
});
