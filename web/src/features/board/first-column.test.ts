import { expect, test } from "vitest";
import type { Column, TaskCard } from "@/api/types";
import { firstColumn } from "./first-column";

const NOBODY = new Set<string>();
const card = (status: Column, more: object = {}) =>
  ({ id: status, status, attempts: [], error: null, ...more }) as unknown as TaskCard;
const busy = { attempts: [{ status: "running", sessionId: "ses_1" }] };

test.each<[string, TaskCard[], Column | undefined]>([
  ["the board is empty", [], undefined],
  ["work is in progress", [card("backlog"), card("in_progress", busy), card("done")], "in_progress"],
  ["a review is pending", [card("backlog"), card("in_progress", busy), card("in_review")], "in_review"],
  [
    "a task has failed",
    [card("backlog"), card("in_progress", { error: "The push was rejected." }), card("in_review")],
    "in_progress",
  ],
  ["nothing has started", [card("done"), card("backlog")], "backlog"],
  ["everything has ended", [card("cancelled", { error: "The push was rejected." }), card("done")], "done"],
])("when %s", (_, cards, column) => {
  expect(firstColumn(cards, NOBODY)).toBe(column);
});

test("a pending question comes before a review", () => {
  const cards = [card("in_review"), card("in_progress", busy)];
  expect(firstColumn(cards, new Set(["ses_1"]))).toBe("in_progress");
});
