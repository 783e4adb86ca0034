import { expect, it } from "vitest";
import { LogSearch } from "./log-search";
import { LIMITS, LogStore } from "./log-store";

it("finds text in any case, across colour codes, and in appended lines", () => {
  const store = new LogStore();
  store.append("stdout", "An err\u001b[31mor\u001b[0m, error\nfine\nERR");
  const search = new LogSearch(store, "both", "error", false);
  expect(search.sync(100)).toBe(true);
  expect(search.matches).toEqual([
    { line: 0, from: 3, to: 8 },
    { line: 0, from: 10, to: 15 },
  ]);
  store.append("stdout", "OR\n");
  search.sync(100);
  search.sync(100);
  expect(search.matches).toHaveLength(3);
  expect(search.findIndexFrom(1)).toBe(2);
});

it("treats the query as literal text", () => {
  const store = new LogStore();
  store.append("stdout", "a.b(c) aXb\n");
  const search = new LogSearch(store, "both", "a.b(", true);
  search.sync(100);
  expect(search.matches).toEqual([{ line: 0, from: 0, to: 4 }]);
});

it("stops when its time is up and continues later", () => {
  const store = new LogStore();
  store.append("stdout", "x\n".repeat(2000));
  const search = new LogSearch(store, "both", "x", false);
  let now = 0;
  const clock = () => now++;
  expect(search.sync(0, clock)).toBe(false);
  expect(search.matches).toHaveLength(500);
  while (!search.sync(0, clock));
  expect(search.matches).toHaveLength(2000);
});

it("searches one stream, and forgets dropped lines", () => {
  const store = new LogStore({ ...LIMITS, lines: 10 });
  const search = new LogSearch(store, "stderr", "x", false);
  for (let i = 0; i < 40; i++) store.append(i % 2 ? "stdout" : "stderr", "x\n");
  search.sync(100);
  expect(search.matches.every((match) => match.line >= store.first && match.line % 2 === 0)).toBe(true);
  store.append("stdout", "x\n".repeat(20));
  search.sync(100);
  expect(search.matches).toEqual([]);
});
