/** What a person should hear of. Pure, but for the small store below, which all tabs of this browser share. */
import type { PlatformEvent } from "@/api/types";
import { useStored } from "@/lib/stored";

export type NoticeKind = "needsYou" | "finished" | "failed";

export interface Notice {
  /** The event's number: whoever sees it twice knows it. */
  seq: number;
  at: string;
  kind: NoticeKind;
  title: string;
  /** The title of the task or session it is about. Not of notices that an earlier version has stored. */
  subject?: string | undefined;
  detail: string;
  /** What was asked; it is read when that is answered, wherever. */
  askId?: string | undefined;
  /** When this browser heard of it. */
  heard?: number | undefined;
  taskId: string | null;
  sessionId: string | null;
}

const KEPT = 60;
const OVER_BUDGET = "Stopped at the budget";

/** What an event means for a person who is not looking; null for most. */
export function notice(event: PlatformEvent): Notice | null {
  const data = event.data as {
    title?: string;
    error?: string | null;
    code?: string | null;
    to?: string;
    from?: string;
    origin?: string;
    askId?: string;
  };
  const made = (kind: NoticeKind, title: string, detail = "", more: Partial<Notice> = {}): Notice => ({
    seq: event.seq,
    at: event.at,
    kind,
    title,
    detail: plainText(detail),
    ...more,
    taskId: event.taskId,
    sessionId: event.sessionId,
  });
  const isTest = data.origin === "test"; // of an agent, whose result is shown where it was asked for
  switch (event.kind) {
    case "ask.created":
      return made("needsYou", "An agent needs you", data.title ?? "", { askId: data.askId });
    case "turn.stuck":
      return made("needsYou", "An agent seems to be stuck");
    case "task.moved":
      if (data.from === data.to) return null;
      if (data.to === "in_review") return made("finished", "Ready for review", "", { subject: data.title });
      return null;
    case "attempt.failed":
      if (data.code === "cancelled") return null; // a person has stopped it
      return made("failed", data.code === "over_budget" ? OVER_BUDGET : "An attempt failed", data.error ?? "");
    case "attempt.ready":
      return made("finished", "An attempt is ready to be picked");
    case "turn.over_budget":
      if (event.taskId && data.origin !== "person") return null; // its attempt fails, which is told
      return made("failed", OVER_BUDGET, data.error ?? "");
    case "turn.completed":
      return event.taskId || isTest ? null : made("finished", "The agent has finished its turn");
    case "turn.failed":
      return event.taskId || isTest ? null : made("failed", "The agent's turn failed", data.error ?? "");
    default:
      return null;
  }
}

const FOLDER = /\/home\/user\/workspace\//g;

/** Markdown's marks of code and the folder that all work is in say nothing here. */
export const plainText = (text: string): string => text.replace(/`+/g, "").replace(FOLDER, "");

/** What is said first, and alone where there is little room. */
export const headline = (one: Notice): string => (one.subject ? `${one.title}: ${one.subject}` : one.title);

const SETTLED = ["ask.answered", "ask.expired", "ask.cancelled"];

/** What somebody has answered, here or elsewhere, or nobody has to any more. */
export function settledAsk(event: PlatformEvent): string | null {
  const { askId } = event.data as { askId?: string };
  return SETTLED.includes(event.kind) ? (askId ?? null) : null;
}

const MARGIN_MS = 5000;

/** Whether it asks for what is settled, as a list of what waits says that was read at this time: while this browser was away. */
export function isSettled(one: Notice, pending: readonly string[], readAt: number): boolean {
  return one.askId !== undefined && readAt - (one.heard ?? 0) > MARGIN_MS && !pending.includes(one.askId);
}

/** With one more, each once, newest first. */
export function added(known: Notice[], one: Notice): Notice[] {
  if (known.some((other) => other.seq === one.seq)) return known;
  return [one, ...known].sort((a, b) => b.seq - a.seq).slice(0, KEPT);
}

export function useNotices(): {
  notices: Notice[];
  unread: Notice[];
  add: (one: Notice) => void;
  read: (which: (one: Notice) => boolean) => void;
} {
  const [notices, , change] = useStored<Notice[]>("notices", []);
  const [seen, , changeSeen] = useStored<number[]>("notices.read", []);
  const unread = notices.filter((one) => !seen.includes(one.seq));
  return {
    notices,
    unread,
    add: (one) => change((now) => added(now, one)),
    read: (which) => {
      const newly = unread.filter(which).map((one) => one.seq);
      if (newly.length) changeSeen((now) => [...new Set([...newly, ...now])].slice(0, KEPT * 2));
    },
  };
}
