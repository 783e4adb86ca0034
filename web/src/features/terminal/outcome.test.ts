import { expect, it } from "vitest";
import { outcome } from "./outcome";

const broken = { code: 1006, reason: "" };

it("a broken connection is taken up again while the shell is there", () =>
  expect(outcome(broken, true, false)).toEqual({ kind: "again" }));
it("a shell that nobody knows any more has ended", () =>
  expect(outcome(broken, false, false)).toEqual({ kind: "ended", exitCode: null }));
it("an end that was told has its exit code", () =>
  expect(outcome({ code: 1000, reason: "", ended: 3 }, true, false)).toEqual({ kind: "ended", exitCode: 3 }));
it("a lost sandbox is not tried again", () => expect(outcome(broken, true, true).kind).toBe("failed"));
it("the platform's refusal is told in its words", () =>
  expect(outcome({ code: 4403, reason: "Not yours." }, true, false)).toEqual({ kind: "failed", reason: "Not yours." }));
