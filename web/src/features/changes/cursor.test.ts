import { describe, expect, it } from "vitest";
import type { FileDiff } from "@/api/types";
import { type Cursor, moveCursor, placeOf } from "./cursor";
import { rowsOf } from "./rows";

const file = (path: string) =>
  ({ path, change: "modified", patch: "@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n" }) as FileDiff;
const files = [file("a"), file("b")];
const rows = rowsOf(files, { split: false, folded: new Set(), comments: [], draft: null });

function walk(moves: [1 | -1, boolean][]): Cursor | null {
  let cursor: Cursor | null = null;
  for (const [by, extend] of moves) cursor = moveCursor(rows, files, cursor, by, extend)?.cursor ?? cursor;
  return cursor;
}

describe("moveCursor", () => {
  it("moves from line to line and into the next file", () => {
    expect(walk([[1, false]])).toMatchObject({ path: "a", side: "new", head: 1 });
    expect(
      walk([
        [1, false],
        [1, false],
      ]),
    ).toMatchObject({ side: "old", head: 2 });
    expect(walk(Array(5).fill([1, false]))).toMatchObject({ path: "b", head: 1 });
  });

  it("extends the selection on one side of one file", () => {
    const cursor = walk([
      [1, false],
      [1, true],
      [1, true],
      [1, true],
      [1, true],
    ]);
    expect(cursor && placeOf(cursor)).toEqual({ path: "a", side: "new", from: 1, to: 3 });
  });

  it("starts over if its line no longer exists", () => {
    const gone: Cursor = { path: "a", side: "new", origin: 99, head: 99 };
    expect(moveCursor(rows, files, gone, 1, false)?.cursor).toMatchObject({ path: "a", head: 1 });
  });
});
