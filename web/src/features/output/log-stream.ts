/**
 * Stream a command's output from the platform into a store: complete and without duplicates, across reconnects.
 *
 * Bytes have offsets; a new connection resumes at the offset where the last one broke off. If the output is very large, only the end is
 * read; the rest can be downloaded.
 */
import { ApiError } from "@/api/client";
import type { Command } from "@/api/types";
import { Backoff } from "@/lib/backoff";
import { decodeBase64 } from "@/lib/base64";
import { readFrames } from "@/live/frames";
import { beginning, type Frame, Intake } from "./log-intake";
import type { LogStore } from "./log-store";

export type StreamState = "connecting" | "live" | "interrupted" | "over" | "failed";

export class CommandStream {
  private readonly ended = new AbortController();
  private readonly intake: Intake;
  private readonly id: string;
  private readonly store: LogStore;
  private readonly tell: (state: StreamState, error?: unknown) => void;
  private readonly backoff = new Backoff();

  constructor(command: Command, store: LogStore, tell: (state: StreamState, error?: unknown) => void) {
    this.id = command.id;
    this.store = store;
    this.tell = tell;
    this.intake = new Intake(beginning(command));
  }

  async start(): Promise<void> {
    this.tell("connecting");
    while (!this.ended.signal.aborted) {
      try {
        const over = await this.connection();
        if (over) return this.tell("over");
      } catch (error) {
        if (this.ended.signal.aborted) return;
        if (error instanceof ApiError && error.status >= 400 && error.status < 500 && error.status !== 429)
          return this.tell("failed", error);
      }
      if (this.ended.signal.aborted) return;
      this.tell("interrupted");
      await this.backoff.wait();
    }
  }

  stop(): void {
    this.ended.abort();
    this.backoff.hurry();
  }

  /** Read one connection to its end. Returns whether the command had ended. */
  private async connection(): Promise<boolean> {
    const { stdout, stderr } = this.intake.at;
    const path = `/api/v1/commands/${encodeURIComponent(this.id)}/stream?stdout=${stdout}&stderr=${stderr}`;
    const opened = () => {
      this.backoff.reset();
      this.tell("live");
    };
    for await (const { event, data } of readFrames(path, { opened, signal: this.ended.signal })) {
      if (event === "end") {
        for (const stream of ["stdout", "stderr"] as const) this.store.append(stream, this.intake.end(stream));
        return true;
      }
      if (event !== "output") continue;
      const frame = JSON.parse(data) as Frame;
      const text = this.intake.take(frame.stream, frame.offset, decodeBase64(frame.data));
      if (text === null) return false;
      this.store.append(frame.stream, text);
    }
    return false;
  }
}
