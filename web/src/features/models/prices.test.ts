import { describe, expect, it } from "vitest";
import { formatPrices, parsePrices } from "./prices";

describe("prices", () => {
  it("are formatted as they were written", () => {
    const lines = ["claude-* 3 15 0.3 3.75", "gpt 1 2", "free 0 0", "odd 1 2 - 4", "read 1 2 3"];
    const made = parsePrices(lines);
    expect(typeof made).toBe("object");
    expect(formatPrices(made as never)).toEqual(lines);
  });
  it("report the invalid line", () => {
    for (const line of ["gpt", "gpt 1", "gpt one 2", "gpt -1 2", "gpt 1 2 3 4 5", "gpt - 2"]) {
      expect(parsePrices(["a 1 2", line])).toContain(line);
    }
  });
});
