/** Load a session's messages on demand: the latest, earlier ones, and those that events carried only in part. */
import type { Message, PlatformEvent } from "@/api/types";
import { Transcript } from "./transcript";

export interface MessagePage {
  items: Message[];
  nextCursor?: string | null;
}
export type ReadPage = (cursor: string | undefined, limit: number) => Promise<MessagePage>;

export interface Reading {
  messages: Message[];
  /** There are earlier messages. */
  more: boolean;
  state: "loading" | "ready" | "failed";
  /** Earlier messages are being loaded. */
  reaching: boolean;
  error: unknown;
}

export const PAGE = 100;
const NOTIFY_MS = 60;
const AGAIN_MS = 250;
const RETRY_MS = 2000;
const MOST_PAGES = 50;

export class TranscriptReader {
  private readonly transcript = new Transcript();
  private readonly again = new Set<string>();
  private readonly listeners = new Set<() => void>();
  private refresh = true;
  private cursor: string | undefined;
  private reached = false;
  private working = false;
  private ended = false;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private snapshot: Reading = { messages: [], more: false, state: "loading", reaching: false, error: null };

  constructor(private readonly page: ReadPage) {}

  readonly subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  readonly current = (): Reading => this.snapshot;

  start(): void {
    this.ended = false;
    void this.work();
  }

  stop(): void {
    this.ended = true;
    clearTimeout(this.timer);
    this.timer = undefined;
  }

  applyEvent(event: PlatformEvent): void {
    for (const id of this.transcript.hear(event)) this.again.add(id);
    this.notifySoon();
    if (this.again.size) void this.work();
  }

  /** Events were lost: reload everything that may have changed. */
  reset(): void {
    this.transcript.lose();
    this.refresh = true;
    void this.work();
  }

  retry(): void {
    this.show({ state: "loading", error: null });
    void this.work();
  }

  /** Load earlier messages. Does nothing while a load is running, or if there are none. */
  async earlier(): Promise<void> {
    if (this.snapshot.reaching || !this.snapshot.more) return;
    this.show({ reaching: true });
    const reading = this.transcript.begin();
    try {
      const { items, nextCursor } = await this.page(this.transcript.oldest, PAGE);
      for (const id of this.transcript.take(reading, items)) this.again.add(id);
      this.show({ reaching: false, more: Boolean(nextCursor), messages: this.transcript.messages });
    } catch {
      this.transcript.drop(reading);
      setTimeout(() => this.show({ reaching: false }), RETRY_MS); // Scrolling triggers the next attempt.
    }
  }

  private async work(): Promise<void> {
    if (this.working) return;
    this.working = true;
    while (!this.ended && (this.refresh || this.again.size)) {
      try {
        if (this.refresh) await this.refreshLatest();
        else await this.reloadPending();
      } catch (error) {
        if (this.snapshot.state !== "ready") {
          this.show({ state: "failed", error });
          break; // The panel offers a retry button.
        }
        await pause(RETRY_MS);
      }
    }
    this.working = false;
  }

  /** Load from the newest message back to the oldest that may have changed. */
  private async refreshLatest(): Promise<void> {
    this.refresh = false;
    const floor = this.transcript.floor;
    const reading = this.transcript.begin();
    const items: Message[] = [];
    try {
      let cursor: string | undefined;
      for (let pages = 0; pages < MOST_PAGES; pages += 1) {
        const page = await this.page(cursor, PAGE);
        items.push(...page.items);
        cursor = page.nextCursor ?? undefined;
        const last = page.items[page.items.length - 1];
        if (!cursor || !last || !floor || last.id <= floor) break;
      }
      this.cursor = cursor;
    } catch (error) {
      this.transcript.drop(reading);
      this.refresh = true;
      throw error;
    }
    for (const id of this.transcript.take(reading, items)) this.again.add(id);
    const more = this.reached ? this.snapshot.more : Boolean(this.cursor);
    this.reached = true;
    this.show({ state: "ready", error: null, more, messages: this.transcript.messages });
  }

  /** Load the newest message that has to be reloaded, with a page of others if there are several. */
  private async reloadPending(): Promise<void> {
    await pause(AGAIN_MS); // Limit reloads of a fast-growing message to a few per second.
    const wanted = [...this.again].sort();
    const newest = wanted[wanted.length - 1] as string;
    this.again.clear();
    const reading = this.transcript.begin();
    try {
      const { items } = await this.page(`${newest}0`, wanted.length === 1 ? 1 : PAGE); // All ids have the same length.
      const last = items[items.length - 1]?.id;
      for (const id of wanted) if (last !== undefined && id < last) this.again.add(id);
      const about = new Set(wanted);
      const asked = items.filter((one) => about.has(one.id));
      for (const id of this.transcript.take(reading, asked)) this.again.add(id);
    } catch (error) {
      this.transcript.drop(reading);
      for (const id of wanted) this.again.add(id);
      throw error;
    }
    this.notifySoon();
  }

  private notifySoon(): void {
    this.timer ??= setTimeout(() => {
      this.timer = undefined;
      if (this.snapshot.messages !== this.transcript.messages) this.show({ messages: this.transcript.messages });
    }, NOTIFY_MS);
  }

  private show(change: Partial<Reading>): void {
    if (this.ended) return;
    this.snapshot = { ...this.snapshot, ...change };
    for (const listener of this.listeners) listener();
  }
}

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
