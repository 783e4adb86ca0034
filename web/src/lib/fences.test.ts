import { describe, expect, it } from "vitest";
import { plainText, splitCode } from "./fences";

const shown = (text: string) =>
  splitCode(text).map((piece) => `${piece.kind}:${piece.language ? `${piece.language}:` : ""}${piece.text}`);

describe("code in plain text", () => {
  it("is found between fences, and the rest is unchanged", () => {
    expect(shown("Fix this:\n\n```py\nx = 1\n\ny = 2\n```\n\n* keep __init__.py")).toEqual([
      "text:Fix this:",
      "block:py:x = 1\n\ny = 2",
      "text:* keep __init__.py",
    ]);
  });

  it("ends at a fence of the same length, or at the end of the text", () => {
    expect(shown("````\n```\nnot over\n```\n````\nover")).toEqual(["block:```\nnot over\n```", "text:over"]);
    expect(shown("~~~\ncut off")).toEqual(["block:cut off"]);
  });

  it("is found between backticks on one line", () => {
    expect(shown("The check `make test` ended. It`s over")).toEqual([
      "text:The check ",
      "inline:make test",
      "text: ended. It`s over",
    ]);
    expect(shown("a ``b ` c`` d")).toEqual(["text:a ", "inline:b ` c", "text: d"]);
    expect(shown("one `\ntwo `")).toEqual(["text:one `\ntwo `"]);
  });

  it("can be shown without fences and backticks", () => {
    expect(plainText("`make test` failed:\n```\nFAIL\n```")).toBe("make test failed:\nFAIL\n");
  });

  it("is not found where there is none", () => {
    expect(shown("")).toEqual([]);
    expect(shown("plain\n\n  words")).toEqual(["text:plain\n\n  words"]);
  });
});
