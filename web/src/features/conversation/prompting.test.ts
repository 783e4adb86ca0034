import { expect, it } from "vitest";
import type { Attempt, Session, Task } from "@/api/types";
import { prompting } from "./prompting";

const session = (status: string | null, more: object = {}) =>
  ({ sandboxId: status ? "sbx_1" : null, sandbox: status ? { status } : null, checkpointAt: null, ...more }) as Session;
const attempt = (status: Attempt["status"], more: object = {}) =>
  ({ status, stopping: false, step: null, ...more }) as Attempt;
const task = (status: Task["status"], ...attempts: Attempt[]) => ({ status, attempts }) as Task;

it("allows messages in a session with a sandbox, including a paused one", () => {
  expect(prompting(session("paused"), undefined, undefined)).toMatchObject({ ways: ["chat"], hint: { chat: "" } });
});

it("explains what is missing", () => {
  expect(prompting(session(null), undefined, undefined)).toMatchObject({ ways: [], provision: true });
  expect(prompting(session("error"), undefined, undefined).closed).toContain("has failed");
});

it("requests changes by default in review, and offers chat only", () => {
  const one = attempt("in_review");
  expect(prompting(session("running"), task("in_review", one), one).ways).toEqual(["round", "chat"]);
});

it("does not request changes on one of several attempts before it is picked", () => {
  const one = attempt("ready");
  expect(prompting(session("running"), task("in_review", one, attempt("ready")), one).ways).toEqual(["chat"]);
  expect(prompting(session("running"), task("in_review", one, attempt("failed")), one).ways).toEqual(["round", "chat"]);
});

it("adds messages during a round to that round, and continues the task after a failure", () => {
  const busy = attempt("running", { step: "agent" });
  expect(prompting(session("running"), task("in_progress", busy), busy).hint.chat).toContain("this round");
  const over = attempt("failed");
  for (const place of ["running", "destroyed"])
    expect(prompting(session(place), task("in_progress", over), over)).toMatchObject({
      retry: true,
      ways: place === "running" ? ["round", "chat"] : ["round"],
    });
  expect(prompting(session("running"), task("done", over), over).ways).toEqual(["chat"]);
  expect(prompting(session("running"), task("in_progress", busy), { ...busy, stopping: true }).ways).toEqual([]);
});
