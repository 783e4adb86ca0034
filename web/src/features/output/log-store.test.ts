import { describe, expect, it } from "vitest";
import { stripAnsi } from "@/lib/ansi";
import { LIMITS, LogStore } from "./log-store";

const lines = (store: LogStore) =>
  Array.from({ length: store.end - store.first }, (_, i) => stripAnsi(store.text(store.first + i)));

describe("lines", () => {
  it("are the same however the text is split", () => {
    const text = "one\r\ntwo\n\nfour\r\nfi";
    for (let cut = 0; cut <= text.length; cut++) {
      const store = new LogStore();
      store.append("stdout", text.slice(0, cut));
      store.append("stdout", text.slice(cut));
      expect(lines(store)).toEqual(["one", "two", "", "four", "fi"]);
    }
  });
  it("are the same if appended one character at a time", () => {
    const store = new LogStore();
    for (const character of "10%\r20%\r100%\r\ndone\n") store.append("stdout", character);
    expect(lines(store)).toEqual(["100%", "done"]);
  });
  it("keep a progress bar on one line, where shorter text leaves the rest", () => {
    const store = new LogStore();
    store.append("stderr", "loading 1\rloading 2");
    expect(lines(store)).toEqual(["loading 2"]);
    store.append("stderr", "\rdone   \n");
    expect(lines(store)).toEqual(["done    2"]);
  });
  it("do not change on a carriage return until something is written", () => {
    const store = new LogStore();
    store.append("stdout", "abc\r");
    expect(lines(store)).toEqual(["abc"]);
    store.append("stdout", "\nx");
    expect(lines(store)).toEqual(["abc", "x"]);
  });
  it("of two streams do not mix, even if one is unfinished", () => {
    const store = new LogStore();
    store.append("stdout", "out…");
    store.append("stderr", "err\n");
    expect(store.settled).toBe(0);
    store.append("stdout", " end\n");
    expect(lines(store)).toEqual(["out… end", "err"]);
    expect([store.stream(0), store.stream(1), store.settled]).toEqual(["stdout", "stderr", 2]);
  });
  it("end an unfinished line if many others followed it", () => {
    const store = new LogStore();
    store.append("stdout", "prompt> ");
    store.append("stderr", "x\n".repeat(300));
    store.append("stdout", "late\n");
    expect(store.text(0)).toBe("prompt> ");
    expect(store.text(301)).toBe("late");
  });
  it("are broken if too long, and nothing is lost", () => {
    const store = new LogStore({ ...LIMITS, line: 10 });
    store.append("stdout", "abcdefghijKLMNOPQRSTuv");
    store.append("stdout", "wxyz\nend\n");
    expect(lines(store)).toEqual(["abcdefghij", "KLMNOPQRST", "uvwxyz", "end"]);
  });
  it("keep a colour across the end of a line", () => {
    const store = new LogStore();
    store.append("stdout", "\u001b[31mred\nstill\u001b[0m\nplain\n");
    expect([store.look(0), store.look(1), store.look(2)]).toEqual([{}, { fg: "red" }, {}]);
  });
});

describe("limits", () => {
  it("keep the last lines with their numbers", () => {
    const store = new LogStore({ ...LIMITS, lines: 1000 });
    for (let i = 0; i < 5000; i++) store.append("stdout", `${i}\n`);
    expect(store.end).toBe(5000);
    expect(store.end - store.first).toBeGreaterThanOrEqual(1000);
    expect(store.end - store.first).toBeLessThanOrEqual(1100);
    expect(store.text(4999)).toBe("4999");
    expect(store.text(store.first)).toBe(String(store.first));
  });
  it("apply to characters too", () => {
    const store = new LogStore({ ...LIMITS, characters: 10_000 });
    for (let i = 0; i < 100; i++) store.append("stdout", `${"x".repeat(999)}\n`);
    expect(store.end - store.first).toBeLessThanOrEqual(11);
    expect(store.end).toBe(100);
  });
});
