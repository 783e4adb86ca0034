import { describe, expect, it } from "vitest";
import type { PlatformEvent } from "@/api/types";
import { addNotice, headline, isSettled, type Notice, noticeOf, settledAsk } from "./notices";

const event = (
  kind: string,
  data: Record<string, unknown> = {},
  taskId: string | null = "tsk_1",
  seq = 7,
): PlatformEvent => ({
  seq,
  at: "2026-01-31T10:00:00.000Z",
  kind,
  ownerId: null,
  projectId: null,
  taskId,
  sessionId: "ses_1",
  sandboxId: null,
  data,
});

describe("notice", () => {
  it("is made when an agent asks", () => {
    expect(noticeOf(event("ask.created", { title: "Run make?" }))).toMatchObject({
      kind: "needsYou",
      detail: "Run make?",
    });
  });
  it("names its task and omits backticks and folders", () => {
    const asked = noticeOf(event("ask.created", { askId: "ask_1", title: "Edit `/home/user/workspace/app.py`" }));
    expect(asked).toMatchObject({ detail: "Edit app.py", askId: "ask_1" });
    expect(headline({ ...(asked as Notice), subject: "Fix it" })).toBe("An agent needs you: Fix it");
    const moved = noticeOf(event("task.moved", { from: "in_progress", to: "in_review", title: "Fix it" }));
    expect(headline(moved as Notice)).toBe("Ready for review: Fix it");
  });
  it("is settled when its request was answered elsewhere", () => {
    expect(settledAsk(event("ask.answered", { askId: "ask_1" }))).toBe("ask_1");
    expect(settledAsk(event("ask.created", { askId: "ask_1" }))).toBeNull();
    const asked = { ...(noticeOf(event("ask.created", { askId: "ask_1" })) as Notice), heard: 10_000 };
    expect(isSettled(asked, [], 11_000)).toBe(false); // the list may be older than the request
    expect(isSettled(asked, ["ask_1"], 20_000)).toBe(false);
    expect(isSettled(asked, [], 20_000)).toBe(true);
  });
  it("is made for a task that moves to review, not for one that moves within it", () => {
    expect(noticeOf(event("task.moved", { from: "in_progress", to: "in_review", title: "T" }))?.kind).toBe("finished");
    expect(noticeOf(event("task.moved", { from: "in_review", to: "in_review", title: "T" }))).toBeNull();
  });
  it("says why a task was not started", () => {
    const notice = noticeOf(event("task.not_started", { title: "T", reason: "Mo has left." }));
    expect(notice).toMatchObject({ kind: "failed", subject: "T", detail: "Mo has left." });
  });
  it("is made for the end of a turn only if the turn belongs to no task", () => {
    expect(noticeOf(event("turn.completed"))).toBeNull();
    expect(noticeOf(event("turn.completed", {}, null))?.kind).toBe("finished");
    expect(noticeOf(event("turn.completed", { origin: "test" }, null))).toBeNull();
  });
  it("is made once for an exceeded budget", () => {
    const failed = noticeOf(event("attempt.failed", { code: "over_budget", error: "All is spent." }));
    expect(failed).toMatchObject({ title: "Stopped: over budget", detail: "All is spent." });
    expect(noticeOf(event("turn.over_budget", { origin: "task" }))).toBeNull();
    expect(noticeOf(event("turn.over_budget", { origin: "person" }))?.title).toBe("Stopped: over budget");
    expect(noticeOf(event("turn.over_budget", { origin: "task" }, null))?.title).toBe("Stopped: over budget");
  });
  it("is not made for progress events", () => {
    for (const kind of ["message.delta", "command.output", "git.progress", "turn.started"])
      expect(noticeOf(event(kind))).toBeNull();
  });
});

describe("added", () => {
  const notice = (seq: number): Notice => ({ ...(noticeOf(event("ask.created", {}, "tsk_1", seq)) as Notice) });
  it("drops duplicates and sorts newest first", () => {
    expect(addNotice(addNotice(addNotice([], notice(1)), notice(3)), notice(1)).map((n) => n.seq)).toEqual([3, 1]);
    expect(addNotice([notice(3)], notice(2)).map((n) => n.seq)).toEqual([3, 2]);
  });
  it("is bounded", () => {
    let list: Notice[] = [];
    for (let seq = 1; seq <= 100; seq++) list = addNotice(list, notice(seq));
    expect(list.length).toBe(60);
    expect(list[0]?.seq).toBe(100);
  });
});
