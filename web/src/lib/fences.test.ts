import { describe, expect, it } from "vitest";
import { plainText, splitCode } from "./fences";

const shown = (text: string) =>
  splitCode(text).map((one) => `${one.kind}:${one.language ? `${one.language}:` : ""}${one.text}`);

describe("code in what somebody wrote", () => {
  it("is what stands between fences, and the rest stays as it is", () => {
    expect(shown("Fix this:\n\n```py\nx = 1\n\ny = 2\n```\n\n* keep __init__.py")).toEqual([
      "text:Fix this:",
      "block:py:x = 1\n\ny = 2",
      "text:* keep __init__.py",
    ]);
  });

  it("ends at a fence that is as long, or at the end", () => {
    expect(shown("````\n```\nnot over\n```\n````\nover")).toEqual(["block:```\nnot over\n```", "text:over"]);
    expect(shown("~~~\ncut off")).toEqual(["block:cut off"]);
  });

  it("is what stands between backticks of one line", () => {
    expect(shown("The check `make test` ended. It`s over")).toEqual([
      "text:The check ",
      "inline:make test",
      "text: ended. It`s over",
    ]);
    expect(shown("a ``b ` c`` d")).toEqual(["text:a ", "inline:b ` c", "text: d"]);
    expect(shown("one `\ntwo `")).toEqual(["text:one `\ntwo `"]);
  });

  it("can do without its marks", () => {
    expect(plainText("`make test` failed:\n```\nFAIL\n```")).toBe("make test failed:\nFAIL\n");
  });

  it("is not what has none", () => {
    expect(shown("")).toEqual([]);
    expect(shown("plain\n\n  words")).toEqual(["text:plain\n\n  words"]);
  });
});
