import { expect, it } from "vitest";
import { diffLines } from "./diff-lines";

const shown = (before: string | null, after: string) =>
  diffLines(before, after).map((line) => `${{ same: " ", add: "+", del: "-", gap: "~" }[line.kind]}${line.text}`);

it("shows a new file as added lines", () => {
  expect(shown(null, "a\nb\n")).toEqual(["+a", "+b"]);
});

it("shows changed lines with unchanged lines around them", () => {
  expect(shown("a\nb\nc\n", "a\nx\nc\n")).toEqual([" a", "-b", "+x", " c"]);
});

it("folds lines far from any change", () => {
  const lines = Array.from({ length: 20 }, (_, index) => String(index));
  const after = lines.with(10, "ten");
  expect(shown(lines.join("\n"), after.join("\n"))).toEqual([
    "~7",
    " 7",
    " 8",
    " 9",
    "-10",
    "+ten",
    " 11",
    " 12",
    " 13",
    "~6",
  ]);
});

it("finishes quickly on two large texts", () => {
  const lines = Array.from({ length: 5000 }, (_, index) => `a${index}`).join("\n");
  const other = Array.from({ length: 5000 }, (_, index) => `b${index}`).join("\n");
  expect(diffLines(lines, other)).toHaveLength(10_000);
});
