/** Bytes from the platform as text, each taken once: they have places, and a place that was seen is not taken again. */
import type { Command } from "@/api/types";
import type { Stream } from "./log-store";

/** Of more output than this only the end is read: the rest can be downloaded. */
export const TAIL_BYTES = 24 * 1024 * 1024;

export interface Frame {
  stream: Stream;
  offset: number;
  data: string;
}

/** What has been taken of each stream, and how its bytes become text. */
export class Intake {
  readonly at: Record<Stream, number>;
  private readonly decoders: Record<Stream, TextDecoder> = { stdout: new TextDecoder(), stderr: new TextDecoder() };
  private readonly cut: Record<Stream, boolean>;

  constructor(at: Record<Stream, number>) {
    this.at = { ...at };
    this.cut = { stdout: at.stdout > 0, stderr: at.stderr > 0 };
  }

  /** The new text in a frame, or null when something before it is missing: connect again from `at`. */
  take(stream: Stream, offset: number, bytes: Uint8Array): string | null {
    const known = this.at[stream] - offset;
    if (known < 0) return null;
    if (known >= bytes.length) return "";
    this.at[stream] = offset + bytes.length;
    const text = this.decoders[stream].decode(bytes.subarray(known), { stream: true });
    if (!this.cut[stream]) return text;
    const line = text.indexOf("\n"); // reading began somewhere in a line
    if (line < 0) return "";
    this.cut[stream] = false;
    return text.slice(line + 1);
  }

  /** What was left of a character that never became whole. */
  end(stream: Stream): string {
    return this.decoders[stream].decode();
  }
}

/** Where to begin so that only the end is read. */
export function beginning(command: Pick<Command, "stdoutBytes" | "stderrBytes">): Record<Stream, number> {
  const { stdoutBytes, stderrBytes } = command;
  return { stdout: Math.max(0, stdoutBytes - TAIL_BYTES), stderr: Math.max(0, stderrBytes - TAIL_BYTES) };
}

export function decode(base64: string): Uint8Array {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}
