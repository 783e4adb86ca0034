import { describe, expect, it } from "vitest";
import type { Attempt, Project, Task, User } from "@/api/types";
import {
  countReadyAttempts,
  hasFailed,
  lacksCheckout,
  leadingAttempt,
  mayChangeWork,
  needsPerson,
  roundOf,
  spentOn,
  taskStatus,
  timedAttempt,
} from "./task-facts";

const spent = {
  calls: 0,
  inputTokens: 0,
  outputTokens: 0,
  cacheReadTokens: 0,
  cacheWriteTokens: 0,
  costUsd: 0,
  unpriced: 0,
  estimated: 0,
};
function attempt(status: Attempt["status"], rest: Partial<Attempt> = {}): Attempt {
  return {
    status,
    sessionId: `ses_${status}`,
    step: null,
    stopping: false,
    spent,
    startedAt: null,
    finishedAt: null,
    ...rest,
  } as Attempt;
}
function task(status: Task["status"], attempts: Attempt[] = [], rest: Partial<Task> = {}): Task {
  return {
    status,
    attempts,
    blockedBy: [],
    startWhenReady: false,
    startError: null,
    queuePosition: null,
    error: null,
    finishedAt: null,
    ...rest,
  } as Task;
}

it("lets only the person on whose behalf a task runs, the project's owner and administrators change its work", () => {
  const person = (id: string, role = "member") => ({ id, role }) as User;
  const project = { ownerId: "usr_owner" } as Project;
  const may = (card: Task, user: User) => mayChangeWork(card, user, project);
  const mine = (status: Attempt["status"]) => attempt(status, { ownerId: "usr_mo" });
  const others = [
    task("backlog", [], { startsFor: "usr_mo" }),
    task("backlog", [mine("running")]),
    task("in_progress", [mine("failed")]),
    task("in_review", [mine("in_review")]),
    task("cancelled", [mine("cancelled")]),
  ];
  for (const card of others) {
    expect(may(card, person("usr_eve"))).toBe(false);
    for (const user of [person("usr_mo"), person("usr_owner"), person("usr_root", "admin")])
      expect(may(card, user)).toBe(true);
  }
  const free = [
    task("backlog", [mine("cancelled")]),
    task("done", [mine("merged")]),
    task("in_progress", [mine("archived")]),
  ];
  for (const card of free) expect(may(card, person("usr_eve"))).toBe(true);
});

it("counts the rounds in which the agent worked", () => {
  const step = (round: number, name: string) => ({ round, name });
  const steps = [step(1, "setup"), step(2, "agent"), step(3, "agent")] as NonNullable<Attempt["steps"]>;
  expect(roundOf(attempt("running", { round: 3, steps }))).toBe(2);
  expect(roundOf(attempt("running", { round: 2, steps: steps.slice(0, 1) }))).toBe(1);
});

it("prefers running attempts, then results, then the newest", () => {
  expect(leadingAttempt(task("in_progress", [attempt("failed"), attempt("running"), attempt("ready")]))?.status).toBe(
    "running",
  );
  expect(leadingAttempt(task("done", [attempt("archived"), attempt("merged")]))?.status).toBe("merged");
  expect(
    leadingAttempt(task("in_progress", [attempt("failed", { number: 1 }), attempt("failed", { number: 2 })]))?.number,
  ).toBe(2);
  expect(leadingAttempt(task("backlog"))).toBeUndefined();
});

describe("words", () => {
  it.each<[string, Task, string | null]>([
    ["a step", task("in_progress", [attempt("running", { step: "verify" })]), "Verifying"],
    ["an unknown step", task("in_progress", [attempt("running", { step: "dream" })]), "Running"],
    ["the queue", task("in_progress", [attempt("queued")], { queuePosition: 3 }), "Queued, position 3"],
    ["the next in the queue", task("in_progress", [attempt("queued")], { queuePosition: 1 }), "Queued, next"],
    ["an attempt being stopped", task("cancelled", [attempt("running", { stopping: true })]), "Stopping"],
    ["a failure", task("in_progress", [attempt("failed")]), "Failed"],
    ["a stop by a user", task("in_progress", [attempt("failed", { errorCode: "cancelled" })]), "Stopped"],
    [
      "the detail of a long setup",
      task("in_progress", [attempt("running", { step: "setup", stepDetail: "installing OpenCode (first time only)" })]),
      "Installing OpenCode (first time only)",
    ],
    ["a choice", task("in_review", [attempt("ready"), attempt("ready"), attempt("failed")]), "Pick one of 2"],
    ["nothing during review", task("in_review", [attempt("in_review")]), null],
    ["that it is blocked", task("backlog", [], { blockedBy: ["tsk_1"] }), "Blocked"],
    [
      "an automatic start",
      task("backlog", [], { blockedBy: ["tsk_1"], startWhenReady: true }),
      "Starts when unblocked",
    ],
    ["that it was not started", task("backlog", [], { startError: "Mo has left." }), "Not started"],
    ["nothing in the backlog", task("backlog"), null],
  ])("shows %s", (_, card, words) => {
    expect(taskStatus(card)?.text ?? null).toBe(words);
  });
});

it("needs a user for a question or a choice, not for a question of an ended attempt", () => {
  const asked = new Set(["ses_running", "ses_failed"]);
  expect(needsPerson(task("in_progress", [attempt("running")]), asked)).toBe(true);
  expect(needsPerson(task("in_progress", [attempt("failed")]), asked)).toBe(false);
  expect(needsPerson(task("in_review", [attempt("ready")]), asked)).toBe(true);
  expect(countReadyAttempts(task("in_review", [attempt("ready"), attempt("running")]))).toBe(0);
});

it("has not failed while another attempt is running", () => {
  expect(hasFailed(task("in_progress", [attempt("failed"), attempt("running")]))).toBe(false);
  expect(hasFailed(task("in_progress", [attempt("failed")], { error: "no" }))).toBe(true);
});

it("knows whether the repository is checked out while an attempt starts", () => {
  const starting = (step: Attempt["step"], rest: Partial<Attempt> = {}) =>
    attempt("running", { step, round: 1, ...rest });
  expect([null, "setup", "provision", "checkout", "agent"].map((step) => lacksCheckout(starting(step)))).toEqual([
    true, true, true, true, false,
  ]); // biome-ignore format: one line
  const steps = [{ name: "checkout", status: "completed" }] as Attempt["steps"];
  expect(lacksCheckout(starting("provision", { round: 2, steps }))).toBe(false);
  expect(lacksCheckout(attempt("failed", { step: "checkout", round: 1 }))).toBe(false);
});

it("sums known costs and marks unknown and estimated ones", () => {
  const paid = attempt("running", { spent: { ...spent, calls: 2, costUsd: 0.5 } });
  const unknown = attempt("failed", { spent: { ...spent, calls: 1, costUsd: null, unpriced: 1 } });
  expect(spentOn(task("in_progress", [paid]))).toEqual({ usd: 0.5, hasUnpriced: false, estimated: false });
  expect(spentOn(task("in_progress", [paid, unknown]))).toEqual({ usd: 0.5, hasUnpriced: true, estimated: false });
  const stopped = attempt("cancelled", { spent: { ...spent, calls: 1, costUsd: 0.25, estimated: 1 } });
  expect(spentOn(task("in_progress", [paid, stopped]))).toEqual({ usd: 0.75, hasUnpriced: false, estimated: true });
  expect(spentOn(task("in_progress", [attempt("running")]))).toBeNull();
});

it("stops the clock when the work stops", () => {
  const running = attempt("running", { seconds: 3, workingSince: "2026-01-01T00:00:00Z" });
  expect(timedAttempt(task("in_progress", [running]))).toEqual(running);
  expect(timedAttempt(task("in_review", [attempt("in_review", { seconds: 60 })]))?.seconds).toBe(60);
  expect(timedAttempt(task("in_progress", [attempt("queued")]))).toBeNull();
});
