import { describe, expect, it } from "vitest";
import { type BoardData, changeBoard, mergePages, removeCard } from "./board-data";
import type { Schemas } from "./client";
import type { Column, TaskCard } from "./types";

const card = (id: string, status: Column, position: number, projectId = "p") =>
  ({ id, status, position, projectId, title: id }) as TaskCard;

function page(status: Column, total: number, ...items: TaskCard[]): Schemas["BoardView"] {
  return { columns: [{ status, total, matching: total, failed: 0, items }], titles: {} };
}
const known = (): BoardData =>
  mergePages(undefined, [page("backlog", 30, card("a", "backlog", 0), card("b", "backlog", 1)), page("done", 5)]);
const names = (data: BoardData) => data.items.map((item) => `${item.id}${item.position}`).join(" ");

describe("a partly loaded board", () => {
  it("merges pages, and keeps the newer version of a card", () => {
    const more = mergePages(known(), [page("backlog", 31, card("b", "backlog", 2), card("c", "backlog", 3))]);
    expect(names(more)).toBe("a0 b2 c3");
    expect(more.counts.backlog).toEqual({ total: 31, matching: 31, failed: 0 });
    expect(more.counts.done.total).toBe(5);
    expect(more.counts.in_review).toEqual({ total: 0, matching: 0, failed: 0 });
  });

  it("updates its counts when a card is moved or removed", () => {
    const moved = changeBoard(known(), (cards) =>
      cards.map((item) => (item.id === "a" ? { ...item, status: "done" as const } : item)),
    );
    expect([moved.counts.backlog.total, moved.counts.done.total]).toEqual([29, 6]);
    const gone = changeBoard(known(), removeCard("a"));
    expect(names(gone)).toBe("b0");
    expect(gone.counts.backlog).toEqual({ total: 29, matching: 29, failed: 0 });
    expect(changeBoard(known(), removeCard("nobody")).counts).toEqual(known().counts);
  });

  it("counts a failed card until it is retried", () => {
    const broken = { ...card("x", "in_progress", 0), error: "It rains." } as TaskCard;
    const columns = [{ status: "in_progress" as const, total: 3, matching: 3, failed: 1, items: [broken] }];
    const data = mergePages(undefined, [{ columns, titles: {} }]);
    expect(data.counts.in_progress).toEqual({ total: 3, matching: 3, failed: 1 });
    const again = changeBoard(data, (cards) => cards.map((item) => ({ ...item, error: null })));
    expect(again.counts.in_progress).toEqual({ total: 3, matching: 3, failed: 0 });
    expect(changeBoard(data, removeCard("x")).counts.in_progress).toEqual({ total: 2, matching: 2, failed: 0 });
  });
});
