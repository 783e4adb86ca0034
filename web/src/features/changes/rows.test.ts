import { describe, expect, it } from "vitest";
import type { FileDiff } from "@/api/types";
import type { Comment } from "@/features/conversation/comments";
import { type Row, rowsOf, type Shape } from "./rows";

const FILE: FileDiff = {
  path: "a.ts",
  change: "modified",
  oldPath: null,
  added: 2,
  removed: 1,
  binary: false,
  patch: "@@ -1,3 +1,4 @@\n one\n-two\n+2\n+more\n three\n",
  truncated: false,
  oldMode: "100644",
  newMode: "100644",
};
const SHAPE: Shape = { split: false, folded: new Set(), comments: [], draft: null };
const comment = (to: number, side: "old" | "new" = "new"): Comment => ({
  id: `${side}${to}`,
  path: "a.ts",
  side,
  from: to,
  to,
  quote: "",
  text: "",
});
const kinds = (rows: Row[]) =>
  rows.map((row) => (row.kind === "pair" ? `${row.left}|${row.right}` : row.kind === "line" ? `${row.at}` : row.kind));

describe("rowsOf", () => {
  it("lists lines in unified or split view", () => {
    expect(kinds(rowsOf([FILE], SHAPE))).toEqual(["file", "hunk", "0", "1", "2", "3", "4"]);
    expect(kinds(rowsOf([FILE], { ...SHAPE, split: true }))).toEqual(["file", "hunk", "0|0", "1|2", "-1|3", "4|4"]);
  });

  it("warns about hidden characters in lines and names, also in a collapsed file", () => {
    const folded = { ...SHAPE, folded: new Set(["a.ts"]) };
    const patch = "@@ -1,1 +1,1 @@\n-a\r\n+b\u202e\r\n";
    expect(rowsOf([{ ...FILE, patch }], folded)[1]).toMatchObject({ kind: "note", note: "hidden" });
    expect(rowsOf([{ ...FILE, path: "a\u200b.ts" }], SHAPE)[1]).toMatchObject({ note: "hidden" });
    expect(rowsOf([{ ...FILE, oldPath: "a\u200b.ts" }], SHAPE)[1]).toMatchObject({ note: "hidden" });
    expect(rowsOf([{ ...FILE, patch: patch.replace("\u202e", "") }], SHAPE)[1]).toMatchObject({ kind: "hunk" });
  });

  it("shows only the header of a collapsed file", () => {
    expect(kinds(rowsOf([FILE], { ...SHAPE, folded: new Set(["a.ts"]) }))).toEqual(["file"]);
  });

  it("places comments and the draft below their lines, and comments without lines on top", () => {
    const draft = { path: "a.ts", side: "new" as const, from: 3, to: 4 };
    const shape = { ...SHAPE, comments: [comment(2), comment(2, "old"), comment(99)], draft };
    const rows = rowsOf([FILE], shape);
    expect(kinds(rows)).toEqual(["file", "comment", "hunk", "0", "1", "comment", "2", "comment", "3", "4", "draft"]);
    expect(rows[1]).toMatchObject({ loose: true, comment: { to: 99 } });
    expect(kinds(rowsOf([FILE], { ...shape, split: true }))).toEqual([
      "file", "comment", "hunk", "0|0", "1|2", "comment", "comment", "-1|3", "4|4", "draft",
    ]); // biome-ignore format: one line
  });

  it("explains why there are no lines", () => {
    expect(kinds(rowsOf([{ ...FILE, binary: true, patch: null }], SHAPE))).toEqual(["file", "note"]);
    const empty = { ...FILE, change: "added", oldMode: null, patch: "" } as const;
    expect(rowsOf([empty], SHAPE)[1]).toMatchObject({ note: "empty" });
    expect(rowsOf([{ ...FILE, truncated: true, patch: null }], SHAPE)[1]).toMatchObject({ note: "truncated" });
    expect(kinds(rowsOf([{ ...FILE, patch: "", newMode: "100755" }], SHAPE))).toEqual(["file"]);
  });

  it("gives every row a unique key", () => {
    const rows = rowsOf([FILE, { ...FILE, path: "b.ts" }], { ...SHAPE, comments: [comment(2), comment(3)] });
    expect(new Set(rows.map((row) => row.key)).size).toBe(rows.length);
  });

  it("handles five hundred files and forty thousand lines", () => {
    const patch = `@@ -1,40 +1,80 @@\n${" line of code\n".repeat(40)}${"+another line\n".repeat(40)}`;
    const files = Array.from({ length: 500 }, (_, index) => ({ ...FILE, path: `f${index}.ts`, patch }));
    expect(rowsOf(files, SHAPE).length).toBe(500 * 82);
  });
});
