import { expect, test } from "vitest";
import { highlight, languageOf } from "./highlight";

test.each([
  ["src/app.py", "python"],
  ["web/Main.TSX", "typescript"],
  ["Makefile", "makefile"],
  ["deploy/Dockerfile.dev", "bash"],
  ["LICENSE", undefined],
  ["notes.unknown", undefined],
  ["src/constructor", undefined],
  ["a.__proto__", undefined],
])("the language of %s is %s", (path, language) => {
  expect(languageOf(path)).toBe(language);
});

test("tokens keep the text, line by line", async () => {
  const text = 's = """a\nb"""\n\nreturn s';
  for (const language of ["python", "no-such-language"]) {
    const lines = await highlight(text, language);
    expect(lines.map((tokens) => tokens.map(([, part]) => part).join("")).join("\n")).toBe(text);
  }
  expect((await highlight(text, "python"))[3]).toContainEqual(["keyword", "return"]);
});
