import { QueryClient, QueryObserver } from "@tanstack/react-query";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import type { PlatformEvent } from "@/api/types";

const read = vi.hoisted(() => vi.fn());
vi.mock("@/api/client", () => ({ api: { GET: read }, unwrap: (response: unknown) => response }));

import { Refresher, staleKeys } from "./refresh";

const event = (kind: string, taskId = "tsk_1") => ({ kind, taskId, sandboxId: "sbx_1" }) as PlatformEvent;
const asked = () => read.mock.calls.map(([, { params }]) => params.path.task_id);

describe("Refresher", () => {
  let client: QueryClient;
  let refresher: Refresher;

  /** Act as a component that shows the query with this key. */
  function show(queryKey: unknown[], data: unknown) {
    client.setQueryData(queryKey, data);
    return new QueryObserver(client, { queryKey, staleTime: Number.POSITIVE_INFINITY }).subscribe(() => undefined);
  }

  beforeEach(() => {
    vi.useFakeTimers();
    read.mockReset().mockResolvedValue({ id: "tsk_1", projectId: "prj_1" });
    client = new QueryClient();
    refresher = new Refresher(client);
  });
  afterEach(() => {
    client.clear();
    vi.useRealTimers();
  });

  it("refetches a card that is shown", async () => {
    show(["task", "tsk_1"], {});
    refresher.handleEvent(event("attempt.step"));
    await vi.advanceTimersByTimeAsync(150);
    expect(asked()).toEqual(["tsk_1"]);
  });

  it("does not refetch a card that is not shown", async () => {
    show(["task", "tsk_2"], {});
    show(["board", { q: null }], { items: [{ id: "tsk_2" }] });
    refresher.handleEvent(event("attempt.step"));
    await vi.advanceTimersByTimeAsync(1000);
    expect(asked()).toEqual([]);
  });

  it("invalidates inactive queries, so that they are refetched when shown", async () => {
    const leave = show(["board", { q: null }], { items: [{ id: "tsk_1" }] });
    leave();
    refresher.handleEvent(event("attempt.step"));
    await vi.advanceTimersByTimeAsync(1000);
    expect(asked()).toEqual([]);
    expect(client.getQueryState(["board", { q: null }])?.isInvalidated).toBe(true);
  });

  it("acts immediately after a quiet period, and twice a second while events keep coming", async () => {
    show(["task", "tsk_1"], {});
    for (let passed = 0; passed < 2000; passed += 50) {
      refresher.handleEvent(event("attempt.step"));
      await vi.advanceTimersByTimeAsync(50);
      if (passed === 100) expect(asked()).toHaveLength(1);
    }
    expect(asked()).toHaveLength(4);
  });
});

describe("staleKeys", () => {
  it("limits git operations to the event's sandbox", () => {
    expect(staleKeys(event("git.operation"))).toContainEqual(["operations", { sandboxId: "sbx_1" }]);
  });
});
