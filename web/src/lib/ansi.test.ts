import { describe, expect, it } from "vitest";
import { applyCarriageReturns, applyErasures, nearest, PLAIN, spans, stripAnsi, styleAfter } from "./ansi";

const E = "\u001b";

describe("strip", () => {
  it("leaves text alone, tabs included", () => expect(stripAnsi("a\tb é 漢")).toBe("a\tb é 漢"));
  it("removes colours, titles, links, cursor movements and control characters", () =>
    expect(
      stripAnsi(`${E}]0;title\u0007${E}[1;31mred${E}[0m${E}[2J ${E}]8;;http://x${E}\\link${E}]8;;${E}\\\u0000!`),
    ).toBe("red link!"));
  it("removes incomplete sequences at the end", () => {
    expect(stripAnsi(`ab${E}`)).toBe("ab");
    expect(stripAnsi(`ab${E}[3`)).toBe("ab");
    expect(stripAnsi(`ab${E}]0;tit`)).toBe("ab");
  });
});

describe("spans", () => {
  it("splits the text by style", () =>
    expect(spans(`a${E}[31mb${E}[1mc${E}[0md`, PLAIN)).toEqual([
      { text: "a", look: {} },
      { text: "b", look: { fg: "red" } },
      { text: "c", look: { fg: "red", bold: true } },
      { text: "d", look: {} },
    ]));
  it("starts with the style of the previous line", () =>
    expect(spans("x", { fg: "green" })).toEqual([{ text: "x", look: { fg: "green" } }]));
  it("maps 256 and true colours to names, and continues after them", () =>
    expect(spans(`${E}[38;5;196;4mx${E}[48;2;0;0;255my`, PLAIN).map((span) => span.look)).toEqual([
      { fg: "red", underline: true },
      { fg: "red", underline: true, bg: "blue" },
    ]));
  it("joins to the stripped text", () => {
    const line = `${E}[32m✓${E}[39m ${E}[2mok${E}[22m ${E}[K`;
    expect(
      spans(line, PLAIN)
        .map((span) => span.text)
        .join(""),
    ).toBe(stripAnsi(line));
  });
});

it("a style continues on the next lines until it is reset", () => {
  const after = styleAfter(`${E}[1;33mwarn`, PLAIN);
  expect(after).toEqual({ bold: true, fg: "yellow" });
  expect(styleAfter(`rest${E}[m`, after)).toBe(PLAIN);
  expect(styleAfter(`rest${E}[39;22m`, after)).toBe(PLAIN);
});

it("nearest distinguishes greys and hues", () => {
  expect([nearest(255, 255, 255), nearest(120, 120, 125), nearest(0, 0, 0)]).toEqual(["white", "grey", "black"]);
  expect([nearest(255, 165, 0), nearest(0, 200, 200), nearest(200, 0, 190)]).toEqual(["yellow", "cyan", "magenta"]);
});

describe("overwritten", () => {
  it("replaces a shorter line completely", () => expect(applyCarriageReturns("10%", "100%")).toBe("100%"));
  it("keeps the part that was not overwritten", () =>
    expect(stripAnsi(applyCarriageReturns("hello world", "HELLO"))).toBe("HELLO world"));
  it("keeps nothing after an erase", () =>
    expect(stripAnsi(applyCarriageReturns("hello world", `${E}[Kbye`))).toBe("bye"));
  it("keeps the colour of the remaining part", () =>
    expect(spans(applyCarriageReturns(`${E}[31mabcdef${E}[0m`, "XY"), PLAIN)).toEqual([
      { text: "XY", look: {} },
      { text: "cdef", look: { fg: "red" } },
    ]));
});

it("backspaces erase", () => expect(applyErasures("-\b\\\b|\b/\b\b\bok")).toBe("ok"));
