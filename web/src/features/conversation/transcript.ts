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
  received: string;
  /** How many characters of `received` are in `base`. */
  shared: number;
}

interface Known {
  message: Message;
  /** The text accumulated from events, if they were received from the first character on. */
  streamed?: string | undefined;
  tail?: Tail | undefined;
}

/** A running request for messages, with the events received since it was sent. */
export class PendingRequest {
  readonly deltas = new Map<string, string>();
  readonly updated = new Map<string, Part>();
}

const TURN_END_EVENTS = new Set(["turn.completed", "turn.cancelled", "turn.failed", "turn.over_budget"]);

export class Transcript {
  private readonly known = new Map<string, Known>();
  private readonly requests = new Set<PendingRequest>();
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
  get oldestUnsettled(): string | undefined {
    return this.ids.find((id) => isUnfinished((this.known.get(id) as Known).message)) ?? this.newest;
  }

  /** Start recording events. Call before a request for messages is sent. */
  startRequest(): PendingRequest {
    const request = new PendingRequest();
    this.requests.add(request);
    return request;
  }

  /** Stop recording events for a request that failed. */
  discardRequest(request: PendingRequest): void {
    this.requests.delete(request);
  }

  /** Merge the messages of a request. Returns the ids that have to be read again. */
  mergeResponse(request: PendingRequest, messages: readonly Message[]): string[] {
    this.requests.delete(request);
    const reload: string[] = [];
    for (const message of messages) {
      const known = this.known.get(message.id);
      const text = getAgentText(message);
      const updated = request.updated.get(message.id);
      if (updated) {
        if (updated.cut) reload.push(message.id);
        else message.parts = [updated, ...message.parts.slice(1)];
      }
      if (text === undefined) {
        this.store({ message });
      } else if (known?.streamed !== undefined) {
        this.store({ message: withText(message, chooseLonger(known.streamed, text)), streamed: known.streamed });
      } else {
        this.store(
          appendDelta({ message, tail: { base: text, received: "", shared: 0 } }, request.deltas.get(message.id) ?? ""),
        );
      }
    }
    return reload;
  }

  /** Events were lost: texts cannot be extended by deltas until they are read again. */
  forgetStreams(): void {
    for (const [id, { message }] of this.known) this.known.set(id, { message });
  }

  /** Apply an event of the session. Returns the ids of messages that have to be read (again). */
  applyEvent(event: PlatformEvent): string[] {
    if (TURN_END_EVENTS.has(event.kind)) return this.findInexactMessages();
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
      return this.applyCreation(id, event, data.role ?? "system", data.turnId ?? null, data.part ?? undefined);
    if (event.kind === "message.delta") return this.applyDelta(id, String(data.text ?? ""));
    if (event.kind === "message.updated" && data.part) return this.applyUpdate(id, data.part);
    return [];
  }

  private applyCreation(
    id: string,
    event: PlatformEvent,
    role: Message["role"],
    turnId: string | null,
    part: Part | undefined,
  ): string[] {
    const reload = role === "agent" ? this.findInexactMessages(id) : [];
    if (!part) return [...reload, id];
    const known = this.known.get(id);
    const text = part.cut ? undefined : getPartText(part);
    if (known) {
      // It was read before this event arrived, so the read text is not older.
      if (text !== undefined && known.streamed === undefined && role === "agent")
        this.store({ message: known.message, streamed: text });
      return reload;
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
    this.store({ message, streamed: role === "agent" ? text : undefined });
    // For user messages, an event has only the first part, and a name in place of an id.
    return part.cut || role !== "agent" ? [...reload, id] : reload;
  }

  private applyDelta(id: string, text: string): string[] {
    for (const request of this.requests) request.deltas.set(id, (request.deltas.get(id) ?? "") + text);
    const known = this.known.get(id);
    if (!known) return this.isEarlier(id) ? [] : [id];
    this.store(appendDelta(known, text));
    return [];
  }

  private applyUpdate(id: string, part: Part): string[] {
    for (const request of this.requests) request.updated.set(id, part);
    const known = this.known.get(id);
    if (!known) return this.isEarlier(id) ? [] : [id];
    const message = { ...known.message, parts: [part, ...known.message.parts.slice(1)] };
    const text = getPartText(part);
    if (!part.cut)
      this.store(
        text === undefined
          ? { message }
          : { message: withText(message, chooseLonger(text, getAgentText(known.message) ?? "")), streamed: text },
      );
    else if (text === undefined)
      this.store({ message: { ...message, parts: [mergeParts(known.message.parts[0], part)] } });
    else this.store({ message: known.message });
    return part.cut ? [id] : [];
  }

  /** Whether the message is older than everything loaded so far. */
  private isEarlier(id: string): boolean {
    return this.oldest !== undefined && id < this.oldest;
  }

  /** Return the finished messages whose text may be inexact. */
  private findInexactMessages(before?: string): string[] {
    const found: string[] = [];
    for (const [id, known] of this.known) if (known.tail?.received && (!before || id < before)) found.push(id);
    return found;
  }

  private store(known: Known): void {
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

function appendDelta(known: Known, text: string): Known {
  if (!text) return known;
  const { message, streamed, tail } = known;
  if (streamed !== undefined) {
    const streamedText = streamed + text;
    return {
      message: withText(message, chooseLonger(streamedText, getAgentText(message) ?? "")),
      streamed: streamedText,
    };
  }
  if (!tail) return known; // It will be read again.
  const received = tail.received + text;
  const shared = received.length <= tail.base.length && tail.base.endsWith(received) ? received.length : tail.shared;
  return {
    message: withText(message, tail.base + received.slice(shared)),
    tail: { base: tail.base, received, shared },
  };
}

/** Merge a truncated tool call into the known one: keep known values until it is read in full. */
function mergeParts(before: Part | undefined, part: Part): Part {
  const kept = Object.entries(part).filter(([, value]) => value !== null);
  return { ...before, ...Object.fromEntries(kept) };
}

function isUnfinished(message: Message): boolean {
  const part = message.parts[0];
  return part?.type === "tool_call" && (part.status === "pending" || part.status === "in_progress");
}

function getPartText(part: Part | undefined): string | undefined {
  return (part?.type === "text" || part?.type === "thought") && typeof part.text === "string" ? part.text : undefined;
}

/** Return the text of an agent message; user messages do not grow. */
function getAgentText(message: Message): string | undefined {
  return message.role === "agent" ? getPartText(message.parts[0]) : undefined;
}

function withText(message: Message, text: string): Message {
  return getAgentText(message) === text
    ? message
    : { ...message, parts: [{ ...message.parts[0], text }, ...message.parts.slice(1)] };
}

function chooseLonger(one: string, other: string): string {
  return one.length >= other.length ? one : other;
}
