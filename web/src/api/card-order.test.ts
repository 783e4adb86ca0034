import { describe, expect, it } from "vitest";
import type { Column, TaskCard } from "@/api/types";
import { columnsOf, gapAt, gapOf, moveCard, placeInGap, stepPlace } from "./card-order";

function card(id: string, status: Column, position: number, projectId = "p"): TaskCard {
  return { id, status, position, projectId } as TaskCard;
}
const names = (tasks: readonly TaskCard[]) => tasks.map((task) => task.id).join("");
const backlog = (...ids: string[]) => ids.map((id, index) => card(id, "backlog", index));

describe("moveCard", () => {
  const board = [...backlog("a", "b", "c"), card("x", "in_progress", 0), card("q", "backlog", 0, "z")];

  it.each<[string, Column, number | null, string, string]>([
    ["a", "backlog", 2, "bca", "x"],
    ["c", "backlog", 0, "cab", "x"],
    ["a", "backlog", 1, "bac", "x"],
    ["b", "in_progress", 0, "ac", "bx"],
    ["b", "in_progress", null, "ac", "xb"],
    ["b", "in_progress", 99, "ac", "xb"],
  ])("%s to %s at %s", (id, to, at, left, right) => {
    const columns = columnsOf(moveCard(board, id, to, at).filter((candidate) => candidate.projectId === "p"));
    expect(names(columns.backlog)).toBe(left);
    expect(names(columns.in_progress)).toBe(right);
    for (const column of [columns.backlog, columns.in_progress]) {
      expect(column.map((task) => task.position)).toEqual(column.map((_, index) => index));
    }
  });

  it("puts finished tasks on top", () => {
    const over = [...board, card("d", "done", 0)];
    expect(names(columnsOf(moveCard(over, "a", "done", null)).done)).toBe("ad");
  });

  it("is undone by moving back, even with another move in between", () => {
    const first = moveCard(board, "b", "in_progress", 0);
    const second = moveCard(first, "c", "in_progress", null);
    const back = moveCard(second, "b", "backlog", 1);
    expect(names(columnsOf(back).in_progress)).toBe("xc");
    expect(columnsOf(moveCard(first, "b", "backlog", 1)).backlog.map((task) => [task.id, task.position])).toEqual([
      ["a", 0],
      ["q", 0],
      ["b", 1],
      ["c", 2],
    ]);
  });

  it("ignores other projects and unknown cards, and keeps unchanged objects", () => {
    const after = moveCard(board, "a", "backlog", 2);
    expect(after[4]).toBe(board[4]);
    expect(after[3]).toBe(board[3]);
    expect(moveCard(board, "nobody", "done", 0)).toEqual(board);
  });
});

describe("placeInGap", () => {
  const column = backlog("a", "b", "c", "d");

  it("counts without the card itself", () => {
    const [a, , , d] = column as [TaskCard, TaskCard, TaskCard, TaskCard];
    expect(placeInGap(column, a, 0)).toBe(0);
    expect(placeInGap(column, a, 1)).toBe(0);
    expect(placeInGap(column, a, 2)).toBe(1);
    expect(placeInGap(column, d, 4)).toBe(3);
  });

  it("follows the neighbour above when filters hide cards between", () => {
    const shown = [column[0], column[3]] as TaskCard[];
    const stranger = card("s", "in_progress", 0);
    expect(placeInGap(shown, stranger, 1)).toBe(1);
    expect(placeInGap(shown, stranger, 2)).toBe(4);
    expect(placeInGap(shown, stranger, 0)).toBe(0);
    expect(placeInGap([], stranger, 0)).toBeNull();
  });

  it("considers only its own project, and draws the line where the card will appear", () => {
    const others = Array.from({ length: 5 }, (_, index) => card(`${index}`, "backlog", index, "z"));
    const all = columnsOf([...backlog("a", "b"), ...others]).backlog;
    expect(names(all)).toBe("a0b1234");
    const stranger = card("s", "in_progress", 0);
    const place = placeInGap(all, stranger, 7);
    expect(place).toBe(2);
    const gap = gapOf(all, stranger, place, "backlog");
    expect(names(columnsOf(moveCard([...all, stranger], "s", "backlog", place)).backlog)).toBe("a0b1s234");
    expect(gap).toBe(4);
  });
});

it("finds the gap under the pointer", () => {
  const items = [0, 1, 2].map((index) => ({ start: index * 100, size: 90 }));
  expect([-5, 44, 46, 144, 146, 500].map((y) => gapAt(y, items))).toEqual([0, 0, 1, 1, 2, 3]);
  expect(gapAt(10, [])).toBe(0);
});

it("moves one place among the cards of its project", () => {
  const column = backlog("a", "b", "c");
  const [a, b, c] = column as [TaskCard, TaskCard, TaskCard];
  expect([stepPlace(column, b, -1), stepPlace(column, b, 1)]).toEqual([0, 2]);
  expect([stepPlace(column, a, -1), stepPlace(column, c, 1)]).toEqual([null, null]);
});

it("uses the cards' positions if only part of the column is loaded", () => {
  const part = [card("g", "backlog", 6), card("k", "backlog", 10)];
  const [g, k] = part as [TaskCard, TaskCard];
  const stranger = card("s", "in_progress", 0);
  expect([0, 1, 2].map((gap) => placeInGap(part, stranger, gap))).toEqual([6, 7, 11]);
  expect([placeInGap(part, g, 2), placeInGap(part, k, 0), stepPlace(part, g, 1), stepPlace(part, k, -1)]).toEqual([
    10, 6, 10, 6,
  ]);
  const after = moveCard([...part, stranger], "s", "backlog", 7);
  expect(after.map((task) => [task.id, task.position])).toEqual([
    ["g", 6],
    ["k", 11],
    ["s", 7],
  ]);
});
