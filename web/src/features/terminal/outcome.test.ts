import { expect, it } from "vitest";
import { outcomeOf } from "./outcome";

const broken = { code: 1006, reason: "" };

it("reconnects while the shell still exists", () =>
  expect(outcomeOf(broken, true, false)).toEqual({ kind: "reconnect" }));
it("treats an unknown shell as ended", () =>
  expect(outcomeOf(broken, false, false)).toEqual({ kind: "ended", exitCode: null }));
it("reports the exit code of a shell that has ended", () =>
  expect(outcomeOf({ code: 1000, reason: "", ended: 3 }, true, false)).toEqual({ kind: "ended", exitCode: 3 }));
it("does not retry when the sandbox is lost", () => expect(outcomeOf(broken, true, true).kind).toBe("failed"));
it("shows the platform's reason for a refusal", () =>
  expect(outcomeOf({ code: 4403, reason: "Not yours." }, true, false)).toEqual({
    kind: "failed",
    reason: "Not yours.",
  }));
