/**
 * What happens on the platform, as it happens: one connection for all tabs, taken up again where it broke off.
 *
 * The tab that holds the lock reads the stream and tells the others; every tab remembers the last number it saw, so whoever
 * reads next goes on there. Where there are no locks (a page that is not from a trustworthy origin) each tab reads for itself.
 * Nothing is given twice: numbers only grow.
 */
import { ApiError } from "@/api/client";
import type { PlatformEvent } from "@/api/types";
import { Backoff } from "@/lib/backoff";
import { frames } from "./frames";

export type LiveState = "connecting" | "live" | "interrupted";
export interface FeedListener {
  /** An event, each once and in order. */
  event?: (event: PlatformEvent) => void;
  /** The past cannot be told completely: read everything again. */
  reset?: () => void;
  state?: (state: LiveState) => void;
}

const CHANNEL = "sandyard.events";
/** Nobody listens to it here, and it comes with every piece that a command writes: whoever shows output reads the command's own stream. */
const UNHEARD = "command.output";

type Told = { event: PlatformEvent } | { state: LiveState } | { reset: true } | { ask: true };

export class Feed {
  private readonly listeners = new Set<FeedListener>();
  private readonly ended = new AbortController();
  private readonly channel = "BroadcastChannel" in globalThis ? new BroadcastChannel(CHANNEL) : undefined;
  private last: number;
  private reading = false;
  private readonly backoff = new Backoff();
  state: LiveState = "connecting";

  /** `last`: the number of the newest event when the first thing was read; 0 if that is not known. */
  constructor(last: number) {
    this.last = last;
  }

  start(): void {
    this.channel?.addEventListener("message", (message: MessageEvent<Told>) => this.heard(message.data));
    if (this.channel && "locks" in navigator) {
      this.channel.postMessage({ ask: true } satisfies Told);
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

  private heard(told: Told): void {
    if ("ask" in told) {
      if (this.reading) this.channel?.postMessage({ state: this.state } satisfies Told);
    } else if (!this.reading) {
      this.take(told);
    }
  }

  private tell(told: Told): void {
    this.channel?.postMessage(told);
    this.take(told);
  }

  private take(told: Told): void {
    if ("event" in told) {
      if (told.event.seq <= this.last) return;
      this.last = told.event.seq;
      for (const listener of this.listeners) listener.event?.(told.event);
    } else if ("state" in told) {
      if (told.state === this.state) return;
      this.state = told.state;
      for (const listener of this.listeners) listener.state?.(told.state);
    } else if ("reset" in told) {
      for (const listener of this.listeners) listener.reset?.();
    }
  }

  private async read(): Promise<void> {
    this.reading = true;
    while (!this.ended.signal.aborted) {
      try {
        await this.connection();
      } catch (error) {
        if (error instanceof ApiError && error.status === 401) return; // the page shows the door
      }
      if (this.ended.signal.aborted) return;
      this.tell({ state: "interrupted" });
      await this.backoff.wait();
    }
  }

  /** One connection, from its opening to its end. */
  private async connection(): Promise<void> {
    const resumed = this.last > 0;
    const opened = () => {
      this.backoff.reset();
      if (!resumed) this.tell({ reset: true }); // what was read before the stream began may be older than it
      this.tell({ state: "live" });
    };
    const headers: Record<string, string> = resumed ? { "Last-Event-ID": String(this.last) } : {};
    for await (const frame of frames("/api/v1/events", { headers, opened, signal: this.ended.signal })) {
      if (frame.event === "events.trimmed") this.tell({ reset: true });
      else if (frame.event === UNHEARD) this.last = Math.max(this.last, Number(frame.id) || 0);
      else if (frame.data) this.tell({ event: JSON.parse(frame.data) as PlatformEvent });
    }
  }
}
