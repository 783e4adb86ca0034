import { describe, expect, it } from "vitest";
import { changedWords, markWords } from "./word-diff";

const cut = (text: string, spans: [number, number][] | undefined) => spans?.map(([from, to]) => text.slice(from, to));

describe("changedWords", () => {
  it("finds the words that differ", () => {
    const old = "    digest = hashlib.md5(password.encode()).hexdigest()";
    const revised = "    digest = hashlib.sha256(password.encode()).hexdigest()";
    const found = changedWords(old, revised);
    expect(cut(old, found?.old)).toEqual(["md5"]);
    expect(cut(revised, found?.new)).toEqual(["sha256"]);
  });

  it("finds several insertions and no deletions", () => {
    const old = "call(one, two)";
    const revised = "call(one, extra, two, three)";
    const found = changedWords(old, revised);
    expect(found?.old).toEqual([]);
    expect(cut(revised, found?.new)?.join("|")).toMatch(/extra.*three/);
  });

  it("returns null for lines with little in common, equal lines and very long lines", () => {
    expect(changedWords("completely different", "nothing alike here at all")).toBeNull();
    expect(changedWords("same", "same")).toBeNull();
    expect(changedWords("x".repeat(5000), "y".repeat(5000))).toBeNull();
  });
});

describe("marked", () => {
  it("splits tokens at the edges of spans", () => {
    expect(
      markWords(
        [
          ["keyword", "return"],
          ["", " value + 1"],
        ],
        [[4, 9]],
      ),
    ).toEqual([
      ["keyword", "retu", false],
      ["keyword", "rn", true],
      ["", " va", true],
      ["", "lue + 1", false],
    ]);
  });
});
