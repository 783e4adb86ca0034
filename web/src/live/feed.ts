/**
 * The platform's live events: one connection for all tabs, resumed where it was interrupted.
 *
 * The tab that holds the lock reads the stream and broadcasts it to the others. Every tab remembers the last sequence number it saw, so
 * that the next reader continues there. Without the Web Locks API (insecure origins) each tab reads the stream itself. No event is
 * delivered twice, because sequence numbers only increase.
 */
import { ApiError } from "@/api/client";
import type { PlatformEvent } from "@/api/types";
import { Backoff } from "@/lib/backoff";
import { readFrames } from "./frames";

export type LiveState = "connecting" | "live" | "interrupted";
export interface FeedListener {
  /** Called for each event, once and in order. */
  event?: (event: PlatformEvent) => void;
  /** Events were missed and cannot be replayed: reload everything. */
  reset?: () => void;
  state?: (state: LiveState) => void;
}

const CHANNEL = "sandyard.events";
/** Very frequent and not needed here: components that show output read the command's own stream. */
const IGNORED = "command.output";

type Message = { event: PlatformEvent } | { state: LiveState } | { reset: true } | { ask: true };

export class Feed {
  private readonly listeners = new Set<FeedListener>();
  private readonly ended = new AbortController();
  private readonly channel = "BroadcastChannel" in globalThis ? new BroadcastChannel(CHANNEL) : undefined;
  private last: number;
  private reading = false;
  private readonly backoff = new Backoff();
  state: LiveState = "connecting";

  /** `last`: sequence number of the newest event at the time of the first read; 0 if unknown. */
  constructor(last: number) {
    this.last = last;
  }

  start(): void {
    this.channel?.addEventListener("message", ({ data }: MessageEvent<Message>) => this.receive(data));
    if (this.channel && "locks" in navigator) {
      this.channel.postMessage({ ask: true } satisfies Message);
      navigator.locks.request(CHANNEL, { signal: this.ended.signal }, () => this.read()).catch(() => undefined);
    } else {
      void this.read();
    }
  }

  stop(): void {
    this.ended.abort();
    this.backoff.hurry();
    this.channel?.close();
  }

  listen(listener: FeedListener): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  private receive(message: Message): void {
    if ("ask" in message) {
      if (this.reading) this.channel?.postMessage({ state: this.state } satisfies Message);
    } else if (!this.reading) {
      this.dispatch(message);
    }
  }

  private broadcast(message: Message): void {
    this.channel?.postMessage(message);
    this.dispatch(message);
  }

  private dispatch(message: Message): void {
    if ("event" in message) {
      if (message.event.seq <= this.last) return;
      this.last = message.event.seq;
      for (const listener of this.listeners) listener.event?.(message.event);
    } else if ("state" in message) {
      if (message.state === this.state) return;
      this.state = message.state;
      for (const listener of this.listeners) listener.state?.(message.state);
    } else if ("reset" in message) {
      for (const listener of this.listeners) listener.reset?.();
    }
  }

  private async read(): Promise<void> {
    this.reading = true;
    while (!this.ended.signal.aborted) {
      try {
        await this.connection();
      } catch (error) {
        if (error instanceof ApiError && error.status === 401) return; // the page redirects to sign-in
      }
      if (this.ended.signal.aborted) return;
      this.broadcast({ state: "interrupted" });
      await this.backoff.wait();
    }
  }

  /** Read one connection until it ends. */
  private async connection(): Promise<void> {
    const resumed = this.last > 0;
    const opened = () => {
      this.backoff.reset();
      if (!resumed) this.broadcast({ reset: true }); // data read before the stream opened may be out of date
      this.broadcast({ state: "live" });
    };
    const headers: Record<string, string> = resumed ? { "Last-Event-ID": String(this.last) } : {};
    for await (const frame of readFrames("/api/v1/events", { headers, opened, signal: this.ended.signal })) {
      if (frame.event === "events.trimmed") this.broadcast({ reset: true });
      else if (frame.event === IGNORED) this.last = Math.max(this.last, Number(frame.id) || 0);
      else if (frame.data) this.broadcast({ event: JSON.parse(frame.data) as PlatformEvent });
    }
  }
}
