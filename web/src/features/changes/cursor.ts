/** Keyboard navigation through the lines of a diff. Pure. */
import type { FileDiff } from "@/api/types";
import { anchorOf, type Place } from "@/features/conversation/comments";
import type { Line, Side } from "@/model/patch";
import type { Row } from "./rows";

/** The keyboard selection: from the line where it started (`origin`) to the current line (`head`). */
export interface Cursor {
  path: string;
  side: Side;
  origin: number;
  head: number;
}

/** Return the lines that are selected. */
export function placeOf(cursor: Cursor): Place {
  const { path, side, origin, head } = cursor;
  return { path, side, from: Math.min(origin, head), to: Math.max(origin, head) };
}

/** Return the lines of code in a row: one, or two in a split view, with the new one first. None for headers and comments. */
export function linesOf(row: Row): Line[] {
  if (row.kind === "line") return [row.hunk.lines[row.at] as Line];
  if (row.kind !== "pair") return [];
  return [row.right, row.left].flatMap((at) => row.hunk.lines[at] ?? []);
}

function isAt(row: Row, path: string, cursor: Cursor): boolean {
  return path === cursor.path && linesOf(row).some((line) => line[cursor.side] === cursor.head);
}

/**
 * Return the cursor one line further down (`by` 1) or up (-1), and the index of its row; null if there is no such line. Without a cursor,
 * start with the first line at or after `from`. `extend` keeps the origin, its file and its side.
 */
export function moveCursor(
  rows: Row[],
  files: FileDiff[],
  cursor: Cursor | null,
  by: 1 | -1,
  extend: boolean,
  from = 0,
): { cursor: Cursor; index: number } | null {
  const path = (row: Row) => files[row.file]?.path ?? "";
  let index = cursor ? rows.findIndex((row) => isAt(row, path(row), cursor)) : from - 1;
  if (cursor && index < 0) return moveCursor(rows, files, null, 1, false, from);
  for (index += by; index >= 0 && index < rows.length; index += by) {
    const row = rows[index] as Row;
    const [line] = linesOf(row);
    if (!line) continue;
    if (!extend || !cursor) {
      const { side, number } = anchorOf(line);
      return { cursor: { path: path(row), side, origin: number, head: number }, index };
    }
    if (path(row) !== cursor.path) return null;
    const same = linesOf(row).find((candidate) => candidate[cursor.side]);
    if (same) return { cursor: { ...cursor, head: same[cursor.side] }, index };
  }
  return null;
}

/** Return whether a line is within a place. */
export function isInPlace(place: Place | null, path: string, line: Line | undefined): boolean {
  if (!place || !line || place.path !== path) return false;
  const number = line[place.side];
  return number > 0 && number >= place.from && number <= place.to;
}
