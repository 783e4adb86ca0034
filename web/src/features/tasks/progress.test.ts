import { expect, it } from "vitest";
import type { Attempt } from "@/api/types";
import { progressOf } from "./progress";

const OUTCOMES: Record<string, string> = { completed: "succeeded" };
const step = (round: number, number: number, name: string, status = "completed", error: string | null = null) => ({
  outcome: OUTCOMES[status] ?? status,
  round,
  number,
  name,
  status,
  tries: 1,
  detail: {},
  error,
  startedAt: "2026-01-01T00:00:00Z",
  finishedAt: status === "running" ? null : "2026-01-01T00:00:02Z",
});
const attempt = (status: Attempt["status"], round: number, steps: ReturnType<typeof step>[]) =>
  ({ status, round, steps }) as unknown as Attempt;
const describeSteps = (item: Attempt) => progressOf(item).map((step) => `${step.name} ${step.status}`);

it("shows completed, running and pending steps", () => {
  const made = attempt("running", 1, [step(1, 1, "setup"), step(1, 2, "provision", "running")]);
  expect(describeSteps(made).slice(0, 4)).toEqual(["setup done", "provision running", "checkout ahead", "agent ahead"]);
  expect(progressOf(made)[0]?.seconds).toBe(2);
});

it("returns to the agent after a failed check", () => {
  const found = { ...step(1, 5, "verify"), outcome: "failed" };
  const steps = [step(1, 4, "agent"), found, step(1, 6, "agent", "running")];
  const made = progressOf(attempt("running", 1, steps));
  expect(made[3]).toMatchObject({ status: "running", times: 2 });
  expect(made[4]).toMatchObject({ name: "verify", status: "failed" });
  const after = [step(1, 4, "agent"), { ...found, outcome: "fixed" }, step(1, 6, "agent"), step(1, 7, "verify")];
  expect(progressOf(attempt("in_review", 1, after))[4]).toMatchObject({ status: "fixed", times: 2 });
});

it("does not mark skipped steps as done", () => {
  const steps = [
    { ...step(1, 5, "verify"), outcome: "skipped" },
    { ...step(1, 8, "pull_request"), outcome: "not_applicable" },
  ];
  const made = describeSteps(attempt("in_review", 1, steps));
  expect([made[4], made[7]]).toEqual(["verify skipped", "pull_request not_applicable"]);
});

it("takes steps that a later round omits from the earlier round", () => {
  const first = ["setup", "provision", "checkout", "agent", "verify", "commit"].map((name, index) =>
    step(1, index + 1, name),
  );
  const publish = attempt("running", 2, [...first, step(2, 1, "provision"), step(2, 2, "push", "running")]);
  expect(describeSteps(publish)).toEqual([
    "setup done", "provision done", "checkout done", "agent done", "verify done", "commit done", "push running", "pull_request ahead",
  ]); // biome-ignore format: one line a round
  const feedback = attempt("running", 2, [
    ...first,
    step(2, 1, "provision"),
    step(2, 2, "checkout"),
    step(2, 3, "agent", "running"),
  ]);
  expect(describeSteps(feedback).slice(3)).toEqual([
    "agent running",
    "verify ahead",
    "commit ahead",
    "push ahead",
    "pull_request ahead",
  ]);
  expect(describeSteps(feedback)[0]).toBe("setup done");
});

it("shows where it failed", () => {
  const made = progressOf(attempt("failed", 1, [step(1, 1, "setup"), step(1, 2, "provision", "failed", "No room.")]));
  expect(made[1]).toMatchObject({ status: "failed", error: "No room." });
  expect(made[2]?.status).toBe("ahead");
  const last = { ...attempt("failed", 1, [step(1, 1, "agent"), step(1, 2, "verify")]), error: "Still fails." };
  expect(progressOf(last)[4]).toMatchObject({ status: "failed", error: "Still fails." });
});

it("does not show a step stopped by a user as failed", () => {
  const made = { ...attempt("failed", 1, [step(1, 1, "agent", "failed")]), errorCode: "cancelled" };
  expect(progressOf(made)[3]?.status).toBe("stopped");
});

it("does not show a step as running after its attempt ended", () => {
  expect(progressOf(attempt("cancelled", 1, [step(1, 1, "setup", "running")]))[0]?.status).toBe("failed");
});

it("does not show steps of an earlier round as those of a round that was stopped before them", () => {
  const first = ["setup", "provision", "checkout", "agent", "verify"].map((name, index) => step(1, index + 1, name));
  const steps = [
    ...first,
    step(1, 6, "commit", "failed", "No space"),
    step(2, 1, "provision"),
    step(2, 2, "checkout"),
    step(2, 3, "agent", "failed", "Cancelled"),
  ];
  const made = describeSteps(attempt("failed", 2, steps));
  expect(made.slice(0, 3)).toEqual(["setup done", "provision done", "checkout done"]);
  expect(made.slice(4)).toEqual(["verify ahead", "commit ahead", "push ahead", "pull_request ahead"]);
});
