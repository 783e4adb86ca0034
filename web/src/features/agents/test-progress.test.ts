import { expect, it } from "vitest";
import type { PlatformEvent } from "@/api/types";
import { progressOf } from "./test-progress";

function event(seq: number, kind: string, data: Record<string, unknown> = {}): PlatformEvent {
  const at = new Date(Date.UTC(2026, 0, 1, 0, 0, seq)).toISOString();
  return { seq, at, kind, data, ownerId: null, projectId: null, taskId: null, sessionId: "ses_1", sandboxId: null };
}

it("starts with the sandbox", () => {
  expect(progressOf([]).steps).toEqual([{ name: "sandbox", seconds: null, ok: null }]);
});

it("lists the steps, including an install, whatever the order of events", () => {
  const heard = [
    event(4, "agent.installing", { what: "opencode 1.2" }),
    event(1, "session.created"),
    event(3, "sandbox.running"),
  ];
  expect(progressOf([...heard, ...heard])).toMatchObject({
    steps: [
      { name: "sandbox", seconds: 2, ok: true },
      { name: "install", seconds: null },
    ],
    action: "opencode 1.2",
    over: false,
  });
  const ready = progressOf([...heard, event(9, "agent.ready")]);
  expect(ready.steps.map((step) => step.name)).toEqual(["sandbox", "install", "start", "answer"]);
});

it("ends with the platform's result", () => {
  const steps = [{ name: "sandbox", seconds: 1, ok: false }];
  expect(progressOf([event(2, "agent.tested", { ok: false, steps, answer: null, error: "No model." })])).toEqual({
    steps,
    action: null,
    over: true,
    ok: false,
    answer: null,
    error: "No model.",
  });
});
