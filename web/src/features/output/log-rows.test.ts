import { describe, expect, it } from "vitest";
import { breaks, LogRows } from "./log-rows";
import { LIMITS, LogStore } from "./log-store";

describe("breaks", () => {
  it("breaks plain text at the edge", () => expect(breaks("a".repeat(20), 8)).toEqual([8, 16]));
  it("does not break text that fits exactly", () => expect(breaks("a".repeat(16), 8)).toEqual([8]));
  it("handles wide characters and tabs", () => {
    expect(breaks("漢字漢字漢", 8)).toEqual([4]);
    expect(breaks("a\tb\tc", 16)).toEqual([4]);
  });
});

function shown(rows: LogRows, store: LogStore): string[] {
  return Array.from({ length: rows.length }, (_, i) => {
    const row = rows.row(i);
    return store.text(row.line).slice(row.from, row.to);
  });
}

describe("rows", () => {
  it("are the lines of a stream", () => {
    const store = new LogStore();
    const rows = new LogRows(store, "stderr", null);
    store.append("stdout", "a\n");
    store.append("stderr", "b\nc");
    rows.sync();
    store.append("stderr", "d\ne\n");
    rows.sync();
    expect(shown(rows, store)).toEqual(["b", "cd", "e"]);
    expect(rows.indexOf(2)).toBe(1);
  });
  it("wrap, even while a line grows", () => {
    const store = new LogStore();
    const rows = new LogRows(store, "both", 8);
    store.append("stdout", "0123456");
    rows.sync();
    store.append("stdout", "789abcdefgh\nx\n");
    rows.sync();
    expect(shown(rows, store)).toEqual(["01234567", "89abcdef", "gh", "x"]);
    expect([rows.indexOf(0, 9), rows.indexOf(1)]).toEqual([1, 3]);
  });
  it("report how many were dropped at the top, and stay consistent", () => {
    for (const columns of [null, 8]) {
      for (const filter of ["both", "stdout"] as const) {
        const store = new LogStore({ ...LIMITS, lines: 100 });
        const rows = new LogRows(store, filter, columns);
        let gone = 0;
        for (let i = 0; i < 500; i++) {
          store.append(i % 3 ? "stdout" : "stderr", `line ${i} is long\n`);
          gone += rows.sync();
        }
        const fresh = new LogRows(store, filter, columns);
        fresh.sync();
        expect(shown(rows, store)).toEqual(shown(fresh, store));
        const all = (columns ? 2 : 1) * (filter === "both" ? 500 : 333);
        expect(gone + rows.length).toBe(all);
      }
    }
  });
});
