/** Decode output bytes to text. Bytes have offsets, and each offset is taken only once. */
import type { Command } from "@/api/types";
import type { Stream } from "./log-store";

/** If there is more output than this, only the end is read; the rest can be downloaded. */
export const TAIL_BYTES = 24 * 1024 * 1024;

export interface Frame {
  stream: Stream;
  offset: number;
  data: string;
}

/** The read offset and the text decoder of each stream. */
export class Intake {
  readonly at: Record<Stream, number>;
  private readonly decoders: Record<Stream, TextDecoder> = { stdout: new TextDecoder(), stderr: new TextDecoder() };
  private readonly cut: Record<Stream, boolean>;

  constructor(at: Record<Stream, number>) {
    this.at = { ...at };
    this.cut = { stdout: at.stdout > 0, stderr: at.stderr > 0 };
  }

  /** Return the new text in a frame; null if bytes before it are missing: then reconnect from `at`. */
  take(stream: Stream, offset: number, bytes: Uint8Array): string | null {
    const known = this.at[stream] - offset;
    if (known < 0) return null;
    if (known >= bytes.length) return "";
    this.at[stream] = offset + bytes.length;
    const text = this.decoders[stream].decode(bytes.subarray(known), { stream: true });
    if (!this.cut[stream]) return text;
    const line = text.indexOf("\n"); // Reading started in the middle of a line.
    if (line < 0) return "";
    this.cut[stream] = false;
    return text.slice(line + 1);
  }

  /** Flush the decoder: return the rest of an incomplete character. */
  end(stream: Stream): string {
    return this.decoders[stream].decode();
  }
}

/** Return the start offsets, so that only the end of large output is read. */
export function beginning(command: Pick<Command, "stdoutBytes" | "stderrBytes">): Record<Stream, number> {
  const { stdoutBytes, stderrBytes } = command;
  return { stdout: Math.max(0, stdoutBytes - TAIL_BYTES), stderr: Math.max(0, stderrBytes - TAIL_BYTES) };
}
