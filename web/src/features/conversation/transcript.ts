/**
 * A session's messages, merged from pages and events without gaps or duplicates. Pure.
 *
 * A page does not say up to which event it goes, so it may already contain the content of events that arrive after the request. A text
 * only ever grows. If its events were received from the beginning, both the page and the accumulated deltas are prefixes of the full
 * text, and the longer one is right. If the text was first read while it was being written, later deltas are matched against the end of
 * what was read; because that can be ambiguous, the message is read again once it is complete.
 */
import type { Message, PlatformEvent } from "@/api/types";

type Part = Message["parts"][number];

interface Tail {
  /** The text as it was read. */
  base: string;
  /** The deltas received since the request was sent; `base` may already contain some of them. */
  since: string;
  /** How many characters of `since` are in `base`. */
  shared: number;
}

interface Known {
  message: Message;
  /** The text accumulated from events, if they were received from the first character on. */
  heard?: string | undefined;
  tail?: Tail | undefined;
}

/** The events received while a request was running. */
export class Reading {
  readonly grown = new Map<string, string>();
  readonly updated = new Map<string, Part>();
}

const OVER = new Set(["turn.completed", "turn.cancelled", "turn.failed", "turn.over_budget"]);

export class Transcript {
  private readonly known = new Map<string, Known>();
  private readonly readings = new Set<Reading>();
  private ids: string[] = [];
  private list: Message[] | undefined;

  /** All messages, oldest first. The array and its objects stay identical until something changes. */
  get messages(): Message[] {
    this.list ??= this.ids.map((id) => (this.known.get(id) as Known).message);
    return this.list;
  }

  get oldest(): string | undefined {
    return this.ids[0];
  }

  get newest(): string | undefined {
    return this.ids[this.ids.length - 1];
  }

  /** The oldest message that may have changed without an event: the first unfinished tool call, or the newest message. */
  get floor(): string | undefined {
    return this.ids.find((id) => isOpen((this.known.get(id) as Known).message)) ?? this.newest;
  }

  /** Start recording events. Call before a request for messages is sent. */
  begin(): Reading {
    const reading = new Reading();
    this.readings.add(reading);
    return reading;
  }

  /** Stop recording for a request that failed. */
  drop(reading: Reading): void {
    this.readings.delete(reading);
  }

  /** Merge the messages of a request. Returns the ids that have to be read again. */
  take(reading: Reading, messages: readonly Message[]): string[] {
    this.readings.delete(reading);
    const again: string[] = [];
    for (const message of messages) {
      const known = this.known.get(message.id);
      const text = textOf(message);
      const updated = reading.updated.get(message.id);
      if (updated) {
        if (updated.cut) again.push(message.id);
        else message.parts = [updated, ...message.parts.slice(1)];
      }
      if (text === undefined) {
        this.put({ message });
      } else if (known?.heard !== undefined) {
        this.put({ message: withText(message, longer(known.heard, text)), heard: known.heard });
      } else {
        this.put(grow({ message, tail: { base: text, since: "", shared: 0 } }, reading.grown.get(message.id) ?? ""));
      }
    }
    return again;
  }

  /** Events were lost: texts cannot be extended by deltas until they are read again. */
  lose(): void {
    for (const [id, { message }] of this.known) this.known.set(id, { message });
  }

  /** Apply an event of the session. Returns the ids of messages that have to be read (again). */
  hear(event: PlatformEvent): string[] {
    if (OVER.has(event.kind)) return this.inexactMessages();
    const data = event.data as {
      messageId?: string;
      text?: string;
      part?: Part | null;
      role?: Message["role"];
      turnId?: string | null;
    };
    const id = data.messageId;
    if (!id) return [];
    if (event.kind === "message.created")
      return this.created(id, event, data.role ?? "system", data.turnId ?? null, data.part ?? undefined);
    if (event.kind === "message.delta") return this.grew(id, String(data.text ?? ""));
    if (event.kind === "message.updated" && data.part) return this.changed(id, data.part);
    return [];
  }

  private created(
    id: string,
    event: PlatformEvent,
    role: Message["role"],
    turnId: string | null,
    part: Part | undefined,
  ): string[] {
    const again = role === "agent" ? this.inexactMessages(id) : [];
    if (!part) return [...again, id];
    const known = this.known.get(id);
    const text = part.cut ? undefined : wordsOf(part);
    if (known) {
      // It was read before this event arrived, so the read text is not older.
      if (text !== undefined && known.heard === undefined && role === "agent")
        this.put({ message: known.message, heard: text });
      return again;
    }
    const message: Message = {
      id,
      sessionId: event.sessionId ?? "",
      turnId,
      authorId: null,
      role,
      parts: [part],
      createdAt: event.at,
    };
    this.put({ message, heard: role === "agent" ? text : undefined });
    // For user messages, an event has only the first part, and a name in place of an id.
    return part.cut || role !== "agent" ? [...again, id] : again;
  }

  private grew(id: string, text: string): string[] {
    for (const reading of this.readings) reading.grown.set(id, (reading.grown.get(id) ?? "") + text);
    const known = this.known.get(id);
    if (!known) return this.isEarlier(id) ? [] : [id];
    this.put(grow(known, text));
    return [];
  }

  private changed(id: string, part: Part): string[] {
    for (const reading of this.readings) reading.updated.set(id, part);
    const known = this.known.get(id);
    if (!known) return this.isEarlier(id) ? [] : [id];
    const message = { ...known.message, parts: [part, ...known.message.parts.slice(1)] };
    const text = wordsOf(part);
    if (!part.cut)
      this.put(
        text === undefined
          ? { message }
          : { message: withText(message, longer(text, textOf(known.message) ?? "")), heard: text },
      );
    else if (text === undefined) this.put({ message: { ...message, parts: [merged(known.message.parts[0], part)] } });
    else this.put({ message: known.message });
    return part.cut ? [id] : [];
  }

  /** Whether the message is older than everything loaded so far. */
  private isEarlier(id: string): boolean {
    return this.oldest !== undefined && id < this.oldest;
  }

  /** Return the finished messages whose text may be inexact. */
  private inexactMessages(before?: string): string[] {
    const found: string[] = [];
    for (const [id, known] of this.known) if (known.tail?.since && (!before || id < before)) found.push(id);
    return found;
  }

  private put(known: Known): void {
    const id = known.message.id;
    if (!this.known.has(id)) {
      this.ids.splice(insertionIndex(this.ids, id), 0, id);
    }
    this.known.set(id, known);
    this.list = undefined;
  }
}

function insertionIndex(ids: readonly string[], id: string): number {
  let low = 0;
  let high = ids.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((ids[middle] as string) < id) low = middle + 1;
    else high = middle;
  }
  return low;
}

function grow(known: Known, text: string): Known {
  if (!text) return known;
  const { message, heard, tail } = known;
  if (heard !== undefined) {
    const told = heard + text;
    return { message: withText(message, longer(told, textOf(message) ?? "")), heard: told };
  }
  if (!tail) return known; // It will be read again.
  const since = tail.since + text;
  const shared = since.length <= tail.base.length && tail.base.endsWith(since) ? since.length : tail.shared;
  return { message: withText(message, tail.base + since.slice(shared)), tail: { base: tail.base, since, shared } };
}

/** Merge a truncated tool call into the known one: keep known values until it is read in full. */
function merged(before: Part | undefined, part: Part): Part {
  const kept = Object.entries(part).filter(([, value]) => value !== null);
  return { ...before, ...Object.fromEntries(kept) };
}

function isOpen(message: Message): boolean {
  const part = message.parts[0];
  return part?.type === "tool_call" && (part.status === "pending" || part.status === "in_progress");
}

function wordsOf(part: Part | undefined): string | undefined {
  return (part?.type === "text" || part?.type === "thought") && typeof part.text === "string" ? part.text : undefined;
}

/** Return the text of an agent message; user messages do not grow. */
function textOf(message: Message): string | undefined {
  return message.role === "agent" ? wordsOf(message.parts[0]) : undefined;
}

function withText(message: Message, text: string): Message {
  return textOf(message) === text
    ? message
    : { ...message, parts: [{ ...message.parts[0], text }, ...message.parts.slice(1)] };
}

function longer(one: string, other: string): string {
  return one.length >= other.length ? one : other;
}
