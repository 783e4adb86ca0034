import { describe, expect, it } from "vitest";
import type { Checkpoint, Commit } from "@/api/types";
import { type Entry, timeline } from "./timeline";

const commit = (id: string, minute: number) => ({ id, committedAt: `2026-01-01T10:0${minute}:00.000Z` }) as Commit;
const checkpoint = (id: string, head: string, minute: number) =>
  ({ id, head, createdAt: `2026-01-01T10:0${minute}:30.000Z` }) as Checkpoint;
const told = (entries: Entry[]) =>
  entries.map((entry) =>
    entry.kind === "commit"
      ? entry.commit.id
      : entry.kind === "base"
        ? "base"
        : entry.checkpoints.map((kept) => kept.id).join("+"),
  );

const COMMITS = [commit("c3", 5), commit("c2", 3), commit("c1", 1)];

describe("timeline", () => {
  it("places checkpoints above the commit they are based on, newest first", () => {
    const checkpoints = [checkpoint("k1", "c2", 3), checkpoint("k2", "c2", 4), checkpoint("k0", "base", 0)];
    const entries = timeline({ commits: COMMITS, more: false, checkpoints, pushed: "c2" });
    expect(told(entries)).toEqual(["c3", "k2+k1", "c2", "c1", "k0", "base"]);
  });

  it("marks pushed commits, and omits the base if older commits are not loaded", () => {
    const entries = timeline({ commits: COMMITS, more: true, checkpoints: [checkpoint("k0", "old", 0)], pushed: "c2" });
    expect(told(entries)).toEqual(["c3", "c2", "c1"]);
    expect(entries.map((entry) => entry.kind === "commit" && entry.pushed)).toEqual([false, true, true]);
  });

  it("places a checkpoint by time if its commit was rewritten", () => {
    const entries = timeline({
      commits: COMMITS,
      more: false,
      checkpoints: [checkpoint("k", "gone", 4)],
      pushed: null,
    });
    expect(told(entries)).toEqual(["c3", "k", "c2", "c1", "base"]);
  });
});
