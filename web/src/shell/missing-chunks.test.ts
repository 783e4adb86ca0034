import { afterEach, describe, expect, it, vi } from "vitest";
import { reloadAfterMissingChunks } from "./missing-chunks";

afterEach(() => {
  vi.unstubAllGlobals();
  vi.useRealTimers();
});

describe("reloadAfterMissingChunks", () => {
  it("waits until the platform responds, and reloads once", async () => {
    vi.useFakeTimers();
    const stored = new Map<string, string>();
    const page = new EventTarget();
    const respond = vi.fn<() => Promise<Response>>().mockRejectedValue(new TypeError("Failed to fetch"));
    vi.stubGlobal("addEventListener", page.addEventListener.bind(page));
    vi.stubGlobal("sessionStorage", {
      getItem: (key: string) => stored.get(key) ?? null,
      setItem: stored.set.bind(stored),
    });
    vi.stubGlobal("fetch", respond);
    const reload = vi.fn();
    reloadAfterMissingChunks(reload);
    page.dispatchEvent(new Event("vite:preloadError"));
    await vi.advanceTimersByTimeAsync(5_000);
    expect(reload).not.toHaveBeenCalled();
    respond.mockResolvedValue(new Response());
    await vi.advanceTimersByTimeAsync(1_000);
    expect(reload).toHaveBeenCalledOnce();
    page.dispatchEvent(new Event("vite:preloadError"));
    await vi.advanceTimersByTimeAsync(5_000);
    expect(reload).toHaveBeenCalledOnce();
  });
});
