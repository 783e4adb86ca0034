import { describe, expect, it } from "vitest";
import { hasHidden, markHidden, splitHidden } from "./hidden-characters";

const range = (from: number, to: number) => Array.from({ length: to - from + 1 }, (_, index) => from + index);

describe("hidden characters", () => {
  it.each([
    ["directions", [...range(0x202a, 0x202e), ...range(0x2066, 0x2069), 0x061c]],
    ["zero width", [...range(0x200b, 0x200f), 0x2060, 0xfeff, 0x00ad, 0x3164]],
    ["tags and selectors", [...range(0xe0000, 0xe007f), 0xe0100]],
    ["ignorable", [0x34f, 0x17b4, 0x17b5, ...range(0x180b, 0x180f), ...range(0xfe00, 0xfe0f)]],
    ["fillers and unassigned", [0x115f, 0x1160, 0x2065, 0xffa0, 0xfff0]],
    ["further planes", [0x1bca0, 0x1d173, 0xe0fff]],
    ["others", [0x2800, 0xfff9, 0x13430]],
    ["controls", [...range(0, 8), 0x0b, 0x0c, 0x0d, ...range(0x0e, 0x1f), ...range(0x7f, 0x9f)]],
  ])("are marked: %s", (_, codes) => {
    for (const code of codes) {
      const text = `rm${String.fromCodePoint(code)}x`;
      expect(hasHidden(text)).toBe(true);
      expect(markHidden(text)).toBe(`rm⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩x`);
    }
  });

  it("are separate pieces", () => {
    expect(splitHidden("a\u202eb\u200b\u200b")).toEqual([
      { text: "a", hidden: false },
      { text: "⟨U+202E⟩", hidden: true },
      { text: "b", hidden: false },
      { text: "⟨U+200B⟩", hidden: true },
      { text: "⟨U+200B⟩", hidden: true },
    ]);
  });

  it("include selectors that are not directly after an emoji", () => {
    expect(markHidden("❤\ufe0f\ufe0f 1\ufe0f")).toBe("❤\ufe0f⟨U+FE0F⟩ 1⟨U+FE0F⟩");
  });

  it("are not found in ordinary text", () => {
    const text = "\tdef größe():  # ❤️ ↔️ ‼️ ©️ 🏳️ ▶\ufe0e 1️⃣ 日本語\u3000\u00a0 שלום\r\nend\r";
    expect(hasHidden(text)).toBe(false);
    expect(markHidden(text)).toBe(text);
    expect(splitHidden(text)).toEqual([{ text, hidden: false }]);
  });
});
