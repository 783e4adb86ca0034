import { describe, expect, it } from "vitest";
import type { FileDiff } from "@/api/types";
import { listVisibleNodes, sortInTreeOrder } from "./tree";

const file = (path: string, added = 1, removed = 0): FileDiff => ({
  path,
  change: "modified",
  oldPath: null,
  added,
  removed,
  binary: false,
  patch: "",
  truncated: false,
  oldMode: null,
  newMode: null,
});

const FILES = [file("README.md"), file("src/app/a.ts", 3, 1), file("src/app/deep/b.ts"), file("docs/guide/start.md")];

describe("listVisibleNodes", () => {
  it("lists folders first, joins single-child folders, and sums the counts", () => {
    const nodes = listVisibleNodes(FILES, "", new Set());
    expect(nodes.map((node) => `${"  ".repeat(node.depth)}${node.name}`)).toEqual([
      "docs/guide",
      "  start.md",
      "src/app",
      "  deep",
      "    b.ts",
      "  a.ts",
      "README.md",
    ]);
    expect(nodes[2]).toMatchObject({ count: 2, added: 4, removed: 1 });
  });

  it("hides files in collapsed folders unless a filter is set", () => {
    const folded = new Set(["src/app"]);
    expect(listVisibleNodes(FILES, "", folded).map((node) => node.name)).not.toContain("a.ts");
    expect(listVisibleNodes(FILES, "A.TS", folded).map((node) => node.name)).toEqual(["src/app", "a.ts"]);
  });

  it("returns files in tree order", () => {
    expect(sortInTreeOrder(FILES).map((item) => item.path)).toEqual([
      "docs/guide/start.md",
      "src/app/deep/b.ts",
      "src/app/a.ts",
      "README.md",
    ]);
  });
});
