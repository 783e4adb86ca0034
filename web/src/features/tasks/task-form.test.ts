import { expect, it } from "vitest";
import type { Task } from "@/api/types";
import { changesOf, draftOf, emptyDraft, errorsOf, newTask, remainingErrors } from "./task-form";

const task = {
  id: "tsk_1", projectId: "prj_1", title: "Fix it", description: "", status: "backlog", agent: "demo", model: null, wanted: [],
  baseBranch: null, fromSessionId: null, priority: 0, budget: { usd: null, tokens: null }, needs: [], startWhenReady: false, startsFor: null, startError: null,
} as unknown as Task; // biome-ignore format: a row

it("sends one attempt as the task's agent, and several as a list of attempts", () => {
  const draft = { ...emptyDraft("prj_1", "demo"), title: " Fix it " };
  expect(newTask(draft)).toMatchObject({
    title: "Fix it",
    agent: "demo",
    model: null,
    attempts: [],
    start: true,
    baseBranch: null,
  });
  const several = {
    ...draft,
    rows: [
      { agent: "claude", model: "m" },
      { agent: "", model: "" },
    ],
  };
  expect(newTask(several)).toMatchObject({
    agent: null,
    model: null,
    attempts: [
      { agent: "claude", model: "m" },
      { agent: null, model: null },
    ],
  });
});

it("sends only changed fields", () => {
  const draft = draftOf(task);
  expect(changesOf(task, draft)).toBeNull();
  expect(changesOf(task, { ...draft, priority: "5", usd: "1.5" })).toEqual({
    priority: 5,
    budget: { usd: 1.5, tokens: null },
  });
  expect(changesOf(task, { ...draft, start: true })).toEqual({ start: true });
  expect(changesOf({ ...task, status: "done" }, { ...draft, start: true })).toBeNull();
  expect(changesOf(task, { ...draft, rows: [...draft.rows, { agent: "demo", model: "" }] })).toEqual({
    agent: null,
    attempts: [
      { agent: "demo", model: null },
      { agent: "demo", model: null },
    ],
  });
});

it("starts a task from a session instead of a branch", () => {
  const draft = { ...emptyDraft("prj_1", "demo", "ses_1"), title: "Go on", baseBranch: "dev" };
  expect(newTask(draft)).toMatchObject({ projectId: "prj_1", fromSessionId: "ses_1", baseBranch: null });
  const stored = { ...task, fromSessionId: "ses_1" };
  expect(changesOf(stored, draftOf(stored))).toBeNull();
  expect(changesOf(stored, { ...draftOf(stored), fromSessionId: "" })).toEqual({ fromSessionId: null });
});

it("validates before sending", () => {
  const draft = emptyDraft("", "");
  expect(Object.keys(errorsOf(draft))).toEqual(["title", "projectId"]);
  const odd = { ...draft, title: "x", projectId: "p", priority: "1.5", usd: "-1", tokens: "many" };
  expect(Object.keys(errorsOf(odd))).toEqual(["priority", "budget.usd", "budget.tokens"]);
});

it("clears an error when its field is edited", () => {
  const faults = { title: "a", "budget.usd": "b", "attempts.0.agent": "c" };
  expect(Object.keys(remainingErrors(faults, { title: "x" }))).toEqual(["budget.usd", "attempts.0.agent"]);
  expect(Object.keys(remainingErrors(faults, { usd: "1", rows: [] }))).toEqual(["title"]);
});
