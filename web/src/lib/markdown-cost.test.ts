import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { PAGES } from "@/features/help/pages";
import { LIMITS, markdownCost, textsBeyondBudget } from "./markdown-cost";

const isCheapMarkdown = (text: string) => markdownCost(text) < Number.POSITIVE_INFINITY;

describe("documents", () => {
  it.each(PAGES)("$id is cheap", ({ id }) => {
    expect(isCheapMarkdown(readFileSync(`../${id === "README" ? "" : "docs/"}${id}.md`, "utf8"))).toBe(true);
  });

  it("a long code block is cheap", () => {
    expect(isCheapMarkdown(`Output:\n\n\`\`\`\n${"a[*_b]\n".repeat(1_000)}\`\`\`\n\ndone`)).toBe(true);
  });

  it("tables are cheap", () => {
    expect(isCheapMarkdown(`|a|b|c|d|\n|-|-|-|-|\n${"|1|2|3|4|\n".repeat(1_000)}`)).toBe(true);
    expect(isCheapMarkdown("a || b\n\n".repeat(700))).toBe(true);
  });

  it("many short paragraphs are cheap", () => {
    expect(isCheapMarkdown("a **b** and `c` [d](e)\n\n".repeat(300))).toBe(true);
  });
});

describe("texts that take the parser seconds", () => {
  it.each([
    ["emphasis", "*a_ ".repeat(8_000)],
    ["nested emphasis", "**a ".repeat(1_000) + "b** ".repeat(1_000)],
    ["links", "[a](".repeat(4_000)],
    ["brackets", "]".repeat(16_000)],
    ["code spans", "` ".repeat(8_000)],
    ["HTML", "<a ".repeat(5_000)],
    ["quotes", "> ".repeat(5_000)],
    ["lists", "1. ".repeat(5_000)],
    ["quotes of lists", "> - ".repeat(5_000)],
    ["headings", "a\n=\n".repeat(4_000)],
    ["carriage returns", "a\r".repeat(10_000)],
    ["escapes", "\\".repeat(20_000)],
    ["definitions", "[a]: b\n".repeat(4_000)],
    ["addresses", "https://".repeat(6_000)],
    ["a long text", "a ".repeat(LIMITS.length)],
    ["a wide table, whose rows get all columns", `${"|a".repeat(300)}\n${"|-".repeat(300)}\n${"|b\n".repeat(300)}`],
    ["a table in a quote", `> ${"a|".repeat(300)}\n> ${"-|".repeat(300)}\n${"> b\n".repeat(300)}`],
    ["a paragraph with lines that only look empty", Array(5).fill("*a_ ".repeat(490)).join("\n\u00a0\n")],
    ["deep lists on every line", `${"- ".repeat(30)}a\n`.repeat(322)],
    ["less deep lists on every line", `${"- ".repeat(10)}a\n`.repeat(900)],
    ["lists nested by indentation", Array.from({ length: 300 }, (_, depth) => `${"  ".repeat(depth)}- a\n`).join("")],
    ["a long paragraph in deep lists", `${"- ".repeat(20)}a\n${"b\n".repeat(6_000)}`],
    ["words after a bracket", `[${"a ".repeat(10_000)}`],
  ])("%s", (_, text) => {
    expect(isCheapMarkdown(text)).toBe(false);
  });
});

it("ordinary lists are cheap", () => {
  expect(isCheapMarkdown("- a\n  - b\n    - c\n".repeat(200))).toBe(true);
});

it("the scanner reads a line of tildes only once", () => {
  // with backtracking, this takes longer than the timeout of a test
  expect(isCheapMarkdown(`${"~".repeat(99_000)}\``)).toBe(false);
});

it("a page formats the first texts until its budget is spent", () => {
  const text = (name: string) => `${name}\n\n${"**a** b\n\n".repeat(1_500)}`;
  const [first, second, third] = [text("first"), text("second"), text("third")];
  expect(textsBeyondBudget([first, second, third, "**small**"])).toEqual(new Set([second, third]));
});

describe("code blocks that only the scanner would see are counted", () => {
  const hostile = "*a_ ".repeat(2_000);
  it.each([
    ["in a paragraph", `a\n\`\`\`\n${hostile}`],
    ["with backticks in its first line", `\`\`\`a\`\n${hostile}`],
    ["indented", `    \`\`\`\n${hostile}`],
    ["in a comment", `<!--\n\n\`\`\`\n-->\n${hostile}`],
    ["in a script", `<script>\n\n\`\`\`\n</script>\n${hostile}`],
    ["after its end", `\`\`\`\na\n\`\`\`\n${hostile}`],
    ["after another block in it", `\`\`\`\`\n\`\`\`\n\n~~~\n\`\`\`\`\n\n${hostile}`],
    ["after a marker in it", `\`\`\`\n\`\`\` a\n\n~~~\n\`\`\`\n\n${hostile}`],
    ["after an end with other text", `\`\`\`\na\n\`\`\`\`\`\n${hostile}`],
  ])("%s", (_, text) => {
    expect(isCheapMarkdown(text)).toBe(false);
  });
});
