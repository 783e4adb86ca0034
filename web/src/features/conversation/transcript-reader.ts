/** Load a session's messages on demand: the latest, earlier ones, and those that events carried only in part. */
import type { Message, PlatformEvent } from "@/api/types";
import { Transcript } from "./transcript";

export interface MessagePage {
  items: Message[];
  nextCursor?: string | null;
}
export type ReadPage = (cursor: string | undefined, limit: number) => Promise<MessagePage>;

export interface TranscriptState {
  messages: Message[];
  /** There are earlier messages. */
  hasEarlier: boolean;
  state: "loading" | "ready" | "failed";
  /** Earlier messages are being loaded. */
  loadingEarlier: boolean;
  error: unknown;
}

export const PAGE_SIZE = 100;
const NOTIFY_MS = 60;
const RELOAD_DELAY_MS = 250;
const RETRY_MS = 2000;
const MAX_PAGES = 50;

export class TranscriptReader {
  private readonly transcript = new Transcript();
  private readonly toReload = new Set<string>();
  private readonly listeners = new Set<() => void>();
  private needsRefresh = true;
  private cursor: string | undefined;
  private isLoaded = false;
  private isWorking = false;
  private isStopped = false;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private snapshot: TranscriptState = {
    messages: [],
    hasEarlier: false,
    state: "loading",
    loadingEarlier: false,
    error: null,
  };

  constructor(private readonly readPage: ReadPage) {}

  readonly subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  readonly current = (): TranscriptState => this.snapshot;

  start(): void {
    this.isStopped = false;
    void this.work();
  }

  stop(): void {
    this.isStopped = true;
    clearTimeout(this.timer);
    this.timer = undefined;
  }

  applyEvent(event: PlatformEvent): void {
    for (const id of this.transcript.applyEvent(event)) this.toReload.add(id);
    this.notifySoon();
    if (this.toReload.size) void this.work();
  }

  /** Events were lost: reload everything that may have changed. */
  reset(): void {
    this.transcript.forgetStreams();
    this.needsRefresh = true;
    void this.work();
  }

  retry(): void {
    this.show({ state: "loading", error: null });
    void this.work();
  }

  /** Load earlier messages. Does nothing while a load is running, or if there are none. */
  async loadEarlier(): Promise<void> {
    if (this.snapshot.loadingEarlier || !this.snapshot.hasEarlier) return;
    this.show({ loadingEarlier: true });
    const request = this.transcript.startRequest();
    try {
      const { items, nextCursor } = await this.readPage(this.transcript.oldest, PAGE_SIZE);
      for (const id of this.transcript.mergeResponse(request, items)) this.toReload.add(id);
      this.show({ loadingEarlier: false, hasEarlier: Boolean(nextCursor), messages: this.transcript.messages });
    } catch {
      this.transcript.discardRequest(request);
      setTimeout(() => this.show({ loadingEarlier: false }), RETRY_MS); // Scrolling triggers the next attempt.
    }
  }

  private async work(): Promise<void> {
    if (this.isWorking) return;
    this.isWorking = true;
    while (!this.isStopped && (this.needsRefresh || this.toReload.size)) {
      try {
        if (this.needsRefresh) await this.refreshLatest();
        else await this.reloadPending();
      } catch (error) {
        if (this.snapshot.state !== "ready") {
          this.show({ state: "failed", error });
          break; // The panel offers a retry button.
        }
        await pause(RETRY_MS);
      }
    }
    this.isWorking = false;
  }

  /** Load from the newest message back to the oldest that may have changed. */
  private async refreshLatest(): Promise<void> {
    this.needsRefresh = false;
    const oldestUnsettled = this.transcript.oldestUnsettled;
    const request = this.transcript.startRequest();
    const items: Message[] = [];
    try {
      let cursor: string | undefined;
      for (let pages = 0; pages < MAX_PAGES; pages += 1) {
        const page = await this.readPage(cursor, PAGE_SIZE);
        items.push(...page.items);
        cursor = page.nextCursor ?? undefined;
        const last = page.items[page.items.length - 1];
        if (!cursor || !last || !oldestUnsettled || last.id <= oldestUnsettled) break;
      }
      this.cursor = cursor;
    } catch (error) {
      this.transcript.discardRequest(request);
      this.needsRefresh = true;
      throw error;
    }
    for (const id of this.transcript.mergeResponse(request, items)) this.toReload.add(id);
    const hasEarlier = this.isLoaded ? this.snapshot.hasEarlier : Boolean(this.cursor);
    this.isLoaded = true;
    this.show({ state: "ready", error: null, hasEarlier, messages: this.transcript.messages });
  }

  /** Load the newest message that has to be reloaded, with a page of others if there are several. */
  private async reloadPending(): Promise<void> {
    await pause(RELOAD_DELAY_MS); // Limit reloads of a fast-growing message to a few per second.
    const ids = [...this.toReload].sort();
    const newest = ids[ids.length - 1] as string;
    this.toReload.clear();
    const request = this.transcript.startRequest();
    try {
      const { items } = await this.readPage(`${newest}0`, ids.length === 1 ? 1 : PAGE_SIZE); // All ids have the same length.
      const last = items[items.length - 1]?.id;
      for (const id of ids) if (last !== undefined && id < last) this.toReload.add(id);
      const requested = new Set(ids);
      const reloaded = items.filter((message) => requested.has(message.id));
      for (const id of this.transcript.mergeResponse(request, reloaded)) this.toReload.add(id);
    } catch (error) {
      this.transcript.discardRequest(request);
      for (const id of ids) this.toReload.add(id);
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

  private show(change: Partial<TranscriptState>): void {
    if (this.isStopped) return;
    this.snapshot = { ...this.snapshot, ...change };
    for (const listener of this.listeners) listener();
  }
}

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
