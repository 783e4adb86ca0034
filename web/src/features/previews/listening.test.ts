import { expect, it } from "vitest";
import { isListening } from "./listening";

it("knows whether a process listens, unless the sandbox is paused", () => {
  const items = [{ port: 3000, address: "127.0.0.1", process: "node", url: null }] as never[];
  expect(isListening(undefined, 3000)).toBeNull();
  expect(isListening({ items: [], sleeping: true }, 3000)).toBeNull();
  expect(isListening({ items, sleeping: false }, 3000)).toBe(true);
  expect(isListening({ items, sleeping: false }, 3001)).toBe(false);
});
