import { describe, expect, it } from "vitest";
import type { FileDiff } from "@/api/types";
import { parsePatch } from "@/model/patch";
import { type Comment, promptOf, quoteOf } from "./comments";

const comment = (over: Partial<Comment>): Comment => ({
  id: "1",
  path: "b.py",
  side: "new",
  from: 3,
  to: 3,
  quote: "x = 1",
  text: "Why 1?",
  ...over,
});
const files = [{ path: "a.md" }, { path: "b.py" }] as FileDiff[];

describe("promptOf", () => {
  it("names the file and lines, quotes the code, and follows the order of the files", () => {
    const text = promptOf(
      [comment({}), comment({ path: "a.md", side: "old", from: 1, to: 2, quote: "a ``` b", text: "No." })],
      files,
    );
    expect(text).toBe(
      "2 comments on your changes:\n\na.md:1-2 (as it was before your change)\n````markdown\na ``` b\n````\nNo.\n\nb.py:3\n```python\nx = 1\n```\nWhy 1?",
    );
  });

  it("starts with the user's note if there is one", () => {
    expect(promptOf([comment({})], files, "Please fix this.")).toMatch(/^Please fix this\.\n\nb\.py:3\n/);
  });
});

describe("places", () => {
  const patch = parsePatch("@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n");
  it("quotes the lines of one side", () => {
    expect(quoteOf(patch, { path: "a", side: "new", from: 1, to: 2 })).toBe("one\n2");
    expect(quoteOf(patch, { path: "a", side: "old", from: 2, to: 3 })).toBe("two\nthree");
  });
});
