import { describe, expect, it } from "vitest";
import { mergeChanges } from "./merge";

describe("mergeChanges", () => {
  it("keeps concurrent changes of others and unknown fields", () => {
    const before = { agent: { model: "a", stuckMinutes: 15 }, template: null as string | null };
    const mine = { agent: { model: "b", stuckMinutes: 15 }, template: null };
    const now = { agent: { model: "a", stuckMinutes: 30 }, template: "base", later: { thing: 1 } };
    expect(mergeChanges(before, mine, now)).toEqual({
      agent: { model: "b", stuckMinutes: 30 },
      template: "base",
      later: { thing: 1 },
    });
  });
  it("removes keys that were removed", () => {
    const limits = { backlog: 3, in_review: 5 } as Record<string, number>;
    expect(mergeChanges({ limits }, { limits: { in_review: 5 } }, { limits: { ...limits, in_progress: 2 } })).toEqual({
      limits: { in_review: 5, in_progress: 2 },
    });
  });
  it("replaces lists and nulls as a whole", () => {
    const before = { deny: ["a"], author: null as { name: string } | null };
    const mine = { deny: ["a", "b"], author: { name: "Ada" } };
    expect(mergeChanges(before, mine, before)).toEqual(mine);
    expect(mergeChanges(mine, before, mine)).toEqual(before);
  });
});
