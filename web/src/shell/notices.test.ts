import { describe, expect, it } from "vitest";
import type { PlatformEvent } from "@/api/types";
import { added, headline, isSettled, type Notice, notice, settledAsk } from "./notices";

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

describe("what a person hears of", () => {
  it("is told when an agent asks", () => {
    expect(notice(event("ask.created", { title: "Run make?" }))).toMatchObject({
      kind: "needsYou",
      detail: "Run make?",
    });
  });
  it("is told which task it is about, without marks and folders", () => {
    const asked = notice(event("ask.created", { askId: "ask_1", title: "Edit `/home/user/workspace/app.py`" }));
    expect(asked).toMatchObject({ detail: "Edit app.py", askId: "ask_1" });
    expect(headline({ ...(asked as Notice), subject: "Fix it" })).toBe("An agent needs you: Fix it");
    const moved = notice(event("task.moved", { from: "in_progress", to: "in_review", title: "Fix it" }));
    expect(headline(moved as Notice)).toBe("Ready for review: Fix it");
  });
  it("has read what was answered elsewhere", () => {
    expect(settledAsk(event("ask.answered", { askId: "ask_1" }))).toBe("ask_1");
    expect(settledAsk(event("ask.created", { askId: "ask_1" }))).toBeNull();
    const asked = { ...(notice(event("ask.created", { askId: "ask_1" })) as Notice), heard: 10_000 };
    expect(isSettled(asked, [], 11_000)).toBe(false); // the list may be older than the question
    expect(isSettled(asked, ["ask_1"], 20_000)).toBe(false);
    expect(isSettled(asked, [], 20_000)).toBe(true);
  });
  it("is told of a task that came to review, not of one that changed its place there", () => {
    expect(notice(event("task.moved", { from: "in_progress", to: "in_review", title: "T" }))?.kind).toBe("finished");
    expect(notice(event("task.moved", { from: "in_review", to: "in_review", title: "T" }))).toBeNull();
  });
  it("hears of a turn's end only where no task tells it", () => {
    expect(notice(event("turn.completed"))).toBeNull();
    expect(notice(event("turn.completed", {}, null))?.kind).toBe("finished");
    expect(notice(event("turn.completed", { origin: "test" }, null))).toBeNull();
  });
  it("hears once of a spent budget", () => {
    const failed = notice(event("attempt.failed", { code: "over_budget", error: "All is spent." }));
    expect(failed).toMatchObject({ title: "Stopped at the budget", detail: "All is spent." });
    expect(notice(event("turn.over_budget", { origin: "task" }))).toBeNull();
    expect(notice(event("turn.over_budget", { origin: "person" }))?.title).toBe("Stopped at the budget");
    expect(notice(event("turn.over_budget", { origin: "task" }, null))?.title).toBe("Stopped at the budget");
  });
  it("hears nothing of what goes on", () => {
    for (const kind of ["message.delta", "command.output", "git.progress", "turn.started"])
      expect(notice(event(kind))).toBeNull();
  });
});

describe("the list", () => {
  const one = (seq: number): Notice => ({ ...(notice(event("ask.created", {}, "tsk_1", seq)) as Notice) });
  it("holds each once, newest first", () => {
    expect(added(added(added([], one(1)), one(3)), one(1)).map((n) => n.seq)).toEqual([3, 1]);
    expect(added([one(3)], one(2)).map((n) => n.seq)).toEqual([3, 2]);
  });
  it("is bounded", () => {
    let list: Notice[] = [];
    for (let seq = 1; seq <= 100; seq++) list = added(list, one(seq));
    expect(list.length).toBe(60);
    expect(list[0]?.seq).toBe(100);
  });
});
