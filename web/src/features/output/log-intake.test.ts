import { describe, expect, it } from "vitest";
import { beginning, Intake, TAIL_BYTES } from "./log-intake";

const bytes = (text: string) => new TextEncoder().encode(text);

describe("intake", () => {
  it("joins characters that were split", () => {
    const intake = new Intake({ stdout: 0, stderr: 0 });
    const all = bytes("ä漢🙂\n");
    let text = "";
    all.forEach((_, i) => {
      text += intake.take("stdout", i, all.subarray(i, i + 1));
    });
    expect(text).toBe("ä漢🙂\n");
  });
  it("takes nothing twice, wherever a connection resumes", () => {
    const intake = new Intake({ stdout: 0, stderr: 0 });
    expect(intake.take("stdout", 0, bytes("hello "))).toBe("hello ");
    expect(intake.take("stdout", 0, bytes("hello "))).toBe("");
    expect(intake.take("stdout", 3, bytes("lo world"))).toBe("world");
    expect(intake.at).toEqual({ stdout: 11, stderr: 0 });
  });
  it("detects a gap and keeps its offset", () => {
    const intake = new Intake({ stdout: 0, stderr: 0 });
    expect(intake.take("stderr", 5, bytes("late"))).toBeNull();
    expect(intake.at.stderr).toBe(0);
  });
  it("starts with a whole line when reading starts in the middle", () => {
    const intake = new Intake({ stdout: 100, stderr: 0 });
    expect(intake.take("stdout", 100, bytes("half of"))).toBe("");
    expect(intake.take("stdout", 107, bytes(" a line\nwhole\n"))).toBe("whole\n");
    expect(intake.take("stderr", 0, bytes("err"))).toBe("err");
  });
  it("shows invalid bytes as replacement characters", () => {
    const intake = new Intake({ stdout: 0, stderr: 0 });
    expect(intake.take("stdout", 0, new Uint8Array([0x61, 0xff, 0xe4]))).toBe("a\ufffd");
    expect(intake.end("stdout")).toBe("\ufffd");
  });
});

it("reads only the end of very large output", () =>
  expect(beginning({ stdoutBytes: TAIL_BYTES + 5, stderrBytes: 7 })).toEqual({ stdout: 5, stderr: 0 }));
