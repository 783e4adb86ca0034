import { MutationObserver, QueryClient } from "@tanstack/react-query";
import { describe, expect, it } from "vitest";
import { combineOptions } from "./mutation";

describe("a mutation", () => {
  const log: string[] = [];
  const note = (text: string) => () => void log.push(text);

  it("updates the cache before it calls the component, and then settles", async () => {
    log.length = 0;
    const options = combineOptions(
      { request: async (id: string) => `task ${id}`, onSuccess: note("cache"), onSettled: note("cache settled") },
      {
        onSuccess: (result, variables) => log.push(`${result} for ${variables}`),
        onError: note("error"),
        onSettled: note("settled"),
      },
    );
    const observer = new MutationObserver(new QueryClient(), options);
    expect(await observer.mutate("1")).toBe("task 1");
    expect(log).toEqual(["cache", "task 1 for 1", "cache settled", "settled"]);
  });

  it("stays pending until its cache update is done, without delaying the component", async () => {
    log.length = 0;
    let finish: () => void = () => undefined;
    const read = new Promise<void>((resolve) => {
      finish = resolve;
    });
    const options = combineOptions(
      { request: async (_: string) => 1, onSuccess: () => read },
      { onSuccess: note("shown") },
    );
    const observer = new MutationObserver(new QueryClient(), options);
    const sent = observer.mutate("1").then(note("done"));
    await new Promise((resolve) => setTimeout(resolve));
    expect(log).toEqual(["shown"]);
    expect(observer.getCurrentResult().isPending).toBe(true);
    finish();
    await sent;
    expect(log).toEqual(["shown", "done"]);
  });

  it("reports an error, and settles the cache", async () => {
    log.length = 0;
    const options = combineOptions(
      { request: () => Promise.reject(new Error("no")), onSuccess: note("cache"), onSettled: note("cache settled") },
      { onError: (error) => log.push(error.message), onSuccess: note("shown") },
    );
    await expect(new MutationObserver(new QueryClient(), options).mutate("1")).rejects.toThrow("no");
    expect(log).toEqual(["no", "cache settled"]);
  });

  it("lets a component decide about retries", () => {
    expect(combineOptions({ request: async () => 1, retry: 3 }, {}).retry).toBe(3);
    expect(combineOptions({ request: async () => 1, retry: 3 }, { retry: 1 }).retry).toBe(1);
  });
});
