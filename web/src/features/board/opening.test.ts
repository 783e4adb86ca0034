import { expect, test } from "vitest";
import type { Column, TaskCard } from "@/api/types";
import { firstColumn } from "./opening";

const NOBODY = new Set<string>();
const card = (status: Column, more: object = {}) =>
  ({ id: status, status, attempts: [], error: null, ...more }) as unknown as TaskCard;
const busy = { attempts: [{ status: "running", sessionId: "ses_1" }] };

test.each<[string, TaskCard[], Column | undefined]>([
  ["nothing is there", [], undefined],
  ["work goes on", [card("backlog"), card("in_progress", busy), card("done")], "in_progress"],
  ["a review waits", [card("backlog"), card("in_progress", busy), card("in_review")], "in_review"],
  [
    "something has failed",
    [card("backlog"), card("in_progress", { error: "It rains." }), card("in_review")],
    "in_progress",
  ],
  ["nothing has begun", [card("done"), card("backlog")], "backlog"],
  ["all is over", [card("cancelled", { error: "It rained." }), card("done")], "done"],
])("when %s", (_, cards, column) => {
  expect(firstColumn(cards, NOBODY)).toBe(column);
});

test("an agent that asks comes before a review", () => {
  const cards = [card("in_review"), card("in_progress", busy)];
  expect(firstColumn(cards, new Set(["ses_1"]))).toBe("in_progress");
});
