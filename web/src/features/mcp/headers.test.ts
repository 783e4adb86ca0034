import { describe, expect, it } from "vitest";
import { duplicateOf, headerRows, headersOf, hintOf, isChanged } from "./headers";

const stored = { headers: [{ name: "Authorization", hint: "…wxyz" }] };

describe("headers of an MCP server", () => {
  it("keep stored values unless new ones are typed", () => {
    const written = headerRows(stored);
    expect(headersOf(written)).toEqual({ Authorization: null });
    expect(isChanged(written, stored)).toBe(false);
    const typed = written.map((header) => ({ ...header, value: " Bearer new " }));
    expect(headersOf(typed)).toEqual({ Authorization: "Bearer new" });
    expect(isChanged(typed, stored)).toBe(true);
  });
  it("are ignored without a name", () => {
    expect(headersOf([{ key: 1, name: " ", value: "x" }])).toEqual({});
    expect(isChanged([], stored)).toBe(true);
  });
  it("have a hint only under their stored name", () => {
    expect(hintOf(" authorization ", stored)).toBe("…wxyz");
    expect(hintOf("X-Api-Key", stored)).toBeNull();
    expect(hintOf("Authorization", undefined)).toBeNull();
  });
  it("must not have duplicate names", () => {
    const twice = [
      { key: 1, name: "X-Team", value: "blue" },
      { key: 2, name: "x-team ", value: "red" },
    ];
    expect(duplicateOf(twice)).toBe("x-team");
    expect(
      duplicateOf([...headerRows(stored), { key: 5, name: "", value: "" }, { key: 6, name: " ", value: "" }]),
    ).toBeNull();
  });
});
