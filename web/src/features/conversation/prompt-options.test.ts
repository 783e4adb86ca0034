import { expect, it } from "vitest";
import type { Attempt, Session, Task } from "@/api/types";
import { promptOptions } from "./prompt-options";

const session = (status: string | null, more: object = {}) =>
  ({ sandboxId: status ? "sbx_1" : null, sandbox: status ? { status } : null, checkpointAt: null, ...more }) as Session;
const attempt = (status: Attempt["status"], more: object = {}) =>
  ({ status, stopping: false, step: null, ...more }) as Attempt;
const task = (status: Task["status"], ...attempts: Attempt[]) => ({ status, attempts }) as Task;

it("allows messages in a session with a sandbox, including a paused one", () => {
  expect(promptOptions(session("paused"), undefined, undefined)).toMatchObject({ ways: ["chat"], hint: { chat: "" } });
});

it("explains what is missing", () => {
  expect(promptOptions(session(null), undefined, undefined)).toMatchObject({ ways: [], provision: true });
  expect(promptOptions(session("error"), undefined, undefined).closed).toContain("has failed");
  const merged = attempt("merged");
  expect(promptOptions(session("destroyed"), task("done", merged), merged).closed).toBe(
    "Merged. Start a new sandbox to continue from the last saved state.",
  );
});

it("requests changes by default in review, and offers chat only", () => {
  const single = attempt("in_review");
  expect(promptOptions(session("running"), task("in_review", single), single).ways).toEqual(["round", "chat"]);
});

it("does not request changes on one of several attempts before it is picked", () => {
  const single = attempt("ready");
  expect(promptOptions(session("running"), task("in_review", single, attempt("ready")), single).ways).toEqual(["chat"]);
  expect(promptOptions(session("running"), task("in_review", single, attempt("failed")), single).ways).toEqual([
    "round",
    "chat",
  ]);
});

it("adds messages during a round to that round, and continues the task after a failure", () => {
  const busy = attempt("running", { step: "agent" });
  expect(promptOptions(session("running"), task("in_progress", busy), busy).hint.chat).toContain("this round");
  const over = attempt("failed");
  for (const place of ["running", "destroyed"])
    expect(promptOptions(session(place), task("in_progress", over), over)).toMatchObject({
      retry: true,
      ways: place === "running" ? ["round", "chat"] : ["round"],
    });
  expect(promptOptions(session("running"), task("done", over), over).ways).toEqual(["chat"]);
  expect(promptOptions(session("running"), task("in_progress", busy), { ...busy, stopping: true }).ways).toEqual([]);
});
