import { describe, expect, it } from "vitest";
import type { Ask, Message, Turn } from "@/api/types";
import { adviceFor, latestPlan, numbersOf, rowsOf } from "./rows";

const at = (second: number) => `2026-01-01T00:00:${String(second).padStart(2, "0")}Z`;
const message = (
  second: number,
  turnId: string | null,
  role: Message["role"],
  part: Record<string, unknown> = { type: "text", text: "x" },
): Message => ({
  id: `msg_${String(second).padStart(2, "0")}`,
  sessionId: "ses_1",
  turnId,
  authorId: null,
  role,
  parts: [part],
  createdAt: at(second),
});
const turn = (id: string, status: Turn["status"], more: Partial<Turn> = {}): Turn =>
  ({
    id,
    status,
    sessionId: "ses_1",
    number: 1,
    error: null,
    errorCode: null,
    usage: {},
    queuedAt: at(0),
    ...more,
  }) as Turn;
const ask = (second: number, turnId: string | null): Ask =>
  ({ id: `ask_${second}`, turnId, createdAt: at(second), status: "pending", detail: {} }) as Ask;
const keys = (rows: { key: string }[]) => rows.map((row) => row.key);

describe("rows", () => {
  it("shows a queued prompt before its answer, and hides it while it is queued", () => {
    const said = [
      message(1, "trn_1", "user"),
      message(2, "trn_1", "agent"),
      message(3, "trn_2", "user"),
      message(4, "trn_1", "agent"),
    ];
    expect(keys(rowsOf(said, [turn("trn_1", "running"), turn("trn_2", "queued")], [], false))).toEqual([
      "msg_01",
      "msg_02",
      "msg_04",
    ]);
    const later = [...said, message(5, "trn_2", "agent")];
    expect(keys(rowsOf(later, [turn("trn_1", "completed"), turn("trn_2", "running")], [], false))).toEqual([
      "msg_01",
      "msg_02",
      "msg_04",
      "trn_1",
      "msg_03",
      "msg_05",
    ]);
  });

  it("marks a turn in which permission was denied, unless it was allowed afterwards", () => {
    const denied = (more: Partial<Ask>) =>
      rowsOf([message(1, "trn_1", "agent")], [turn("trn_1", "completed")], [
        { ...ask(2, "trn_1"), kind: "permission", status: "answered", answer: { kind: "reject_once" }, ...more } as Ask,
      ], false).find((row) => row.kind === "turn")?.denied; // biome-ignore format: one call
    expect(denied({})).toBe(true);
    expect(denied({ status: "expired", answer: null })).toBe(true);
    expect(denied({ decidedBy: "overruled" })).toBe(false);
    expect(denied({ answer: { kind: "allow_once" } })).toBe(false);
    expect(denied({ kind: "question", answer: { decision: "reject" } })).toBe(false);
    expect(denied({ turnId: "trn_0" })).toBe(false);
  });

  it("places requests where they were made", () => {
    const said = [message(1, "trn_1", "user"), message(2, "trn_1", "agent"), message(6, "trn_1", "agent")];
    expect(keys(rowsOf(said, [turn("trn_1", "completed")], [ask(8, "trn_1"), ask(4, "trn_1")], false))).toEqual([
      "msg_01",
      "msg_02",
      "ask_4",
      "msg_06",
      "ask_8",
      "trn_1",
    ]);
  });

  it("attaches what the policy allowed to its tool call", () => {
    const call = message(2, "trn_1", "agent", { type: "tool_call", toolCallId: "c1" });
    const allowed = {
      ...ask(3, "trn_1"),
      status: "answered",
      decidedBy: "policy",
      answer: { kind: "allow_once" },
      detail: { toolCall: { toolCallId: "c1" } },
    } as unknown as Ask;
    const elsewhere = { ...allowed, id: "ask_4", detail: { toolCall: { toolCallId: "c2" } } } as Ask;
    const rows = rowsOf([message(1, "trn_1", "user"), call], [], [allowed, elsewhere], false);
    expect(keys(rows)).toEqual(["msg_01", "msg_02", "ask_4"]);
    expect(rows[1]).toMatchObject({ allowed });
  });

  it("places requests without a turn by time", () => {
    const said = [message(3, "trn_1", "agent"), message(6, "trn_2", "agent")];
    expect(keys(rowsOf(said, [turn("trn_1", "completed")], [ask(9, null), ask(4, null)], false))).toEqual([
      "msg_03",
      "trn_1",
      "ask_4",
      "msg_06",
      "ask_9",
    ]);
  });

  it("omits requests that belong to messages not loaded yet", () => {
    expect(keys(rowsOf([message(5, "trn_2", "agent")], [], [ask(2, "trn_1")], true))).toEqual(["msg_05"]);
  });

  it("shows an error once", () => {
    const said = [
      message(1, "trn_1", "user"),
      message(2, "trn_1", "system", { type: "notice", code: "agent_failed", text: "No." }),
    ];
    expect(keys(rowsOf(said, [turn("trn_1", "failed", { error: "No." })], [], false))).toEqual(["msg_01", "trn_1"]);
  });

  it("keeps external messages where they arrived", () => {
    const said = [
      message(1, "trn_1", "user"),
      message(2, "trn_1", "agent"),
      message(3, null, "system"),
      message(4, "trn_2", "user"),
    ];
    expect(keys(rowsOf(said, [turn("trn_1", "completed"), turn("trn_2", "running")], [], false))).toEqual([
      "msg_01",
      "msg_02",
      "msg_03",
      "trn_1",
      "msg_04",
    ]);
  });

  it("marks the message being written", () => {
    const rows = rowsOf(
      [message(1, "trn_1", "user"), message(2, "trn_1", "agent")],
      [turn("trn_1", "running")],
      [],
      false,
    );
    expect(rows.map((row) => row.kind === "message" && row.writing)).toEqual([false, true]);
  });
});

it("finds the plan of the last turn only", () => {
  const plan = message(2, "trn_1", "agent", { type: "plan", entries: [] });
  expect(latestPlan([message(1, "trn_1", "user"), plan, message(3, "trn_1", "agent")])).toBe(plan);
  expect(latestPlan([plan, message(3, "trn_2", "user")])).toBeUndefined();
});

it("prefers the platform's usage numbers over the agent's", () => {
  const models = { calls: 2, inputTokens: 100, outputTokens: 20, costUsd: 0.5 };
  expect(numbersOf(turn("trn_1", "completed", { usage: { models, agent: { totalTokens: 7 } } }))).toEqual({
    tokens: 120,
    costUsd: 0.5,
    estimated: false,
  });
  expect(
    numbersOf(turn("trn_1", "completed", { usage: { models: { calls: 0, costUsd: 0 }, agent: { totalTokens: 7 } } })),
  ).toEqual({ tokens: 7, costUsd: null, estimated: false });
  expect(numbersOf(turn("trn_1", "cancelled", { usage: { models: { ...models, estimated: 1 } } })).estimated).toBe(
    true,
  );
});

it("does not advise a retry without a sandbox", () => {
  expect(adviceFor("sandbox_destroyed")).toMatch(/new sandbox\. Start one/);
  expect(adviceFor("something_else")).toMatch(/^Retry/);
});
