import { describe, expect, it } from "vitest";
import { beginning, decode, Intake, TAIL_BYTES } from "./log-intake";

const bytes = (text: string) => new TextEncoder().encode(text);

describe("intake", () => {
  it("puts characters together that were cut in two", () => {
    const intake = new Intake({ stdout: 0, stderr: 0 });
    const all = bytes("ä漢🙂\n");
    let text = "";
    all.forEach((_, i) => {
      text += intake.take("stdout", i, all.subarray(i, i + 1));
    });
    expect(text).toBe("ä漢🙂\n");
  });
  it("takes nothing twice, wherever a connection begins again", () => {
    const intake = new Intake({ stdout: 0, stderr: 0 });
    expect(intake.take("stdout", 0, bytes("hello "))).toBe("hello ");
    expect(intake.take("stdout", 0, bytes("hello "))).toBe("");
    expect(intake.take("stdout", 3, bytes("lo world"))).toBe("world");
    expect(intake.at).toEqual({ stdout: 11, stderr: 0 });
  });
  it("notices a gap and leaves its place alone", () => {
    const intake = new Intake({ stdout: 0, stderr: 0 });
    expect(intake.take("stderr", 5, bytes("late"))).toBeNull();
    expect(intake.at.stderr).toBe(0);
  });
  it("begins with a whole line when it begins in the middle", () => {
    const intake = new Intake({ stdout: 100, stderr: 0 });
    expect(intake.take("stdout", 100, bytes("half of"))).toBe("");
    expect(intake.take("stdout", 107, bytes(" a line\nwhole\n"))).toBe("whole\n");
    expect(intake.take("stderr", 0, bytes("err"))).toBe("err");
  });
  it("shows bytes that are no text as such", () => {
    const intake = new Intake({ stdout: 0, stderr: 0 });
    expect(intake.take("stdout", 0, new Uint8Array([0x61, 0xff, 0xe4]))).toBe("a\ufffd");
    expect(intake.end("stdout")).toBe("\ufffd");
  });
});

it("reads only the end of very much", () =>
  expect(beginning({ stdoutBytes: TAIL_BYTES + 5, stderrBytes: 7 })).toEqual({ stdout: 5, stderr: 0 }));
it("decodes base64", () => expect([...decode("AP9h")]).toEqual([0, 255, 97]));
