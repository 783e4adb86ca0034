/** Which events become notifications. Pure, except for the store below, which all tabs of this browser share. */
import type { PlatformEvent } from "@/api/types";
import { useStored } from "@/lib/stored";

export type NoticeKind = "needsYou" | "finished" | "failed";

export interface Notice {
  /** The event's sequence number, used to drop duplicates. */
  seq: number;
  at: string;
  kind: NoticeKind;
  title: string;
  /** The title of the task or session. Missing in notices stored by earlier versions. */
  subject?: string | undefined;
  detail: string;
  /** The request it is about; the notice counts as read once that is answered, in any client. */
  askId?: string | undefined;
  /** When this browser received it. */
  heard?: number | undefined;
  taskId: string | null;
  sessionId: string | null;
}

const KEPT = 60;
const OVER_BUDGET = "Stopped: over budget";

/** Return the notice for an event, or null: most events have none. */
export function noticeOf(event: PlatformEvent): Notice | null {
  const data = event.data as {
    title?: string;
    error?: string | null;
    reason?: string;
    code?: string | null;
    to?: string;
    from?: string;
    origin?: string;
    askId?: string;
  };
  const makeNotice = (kind: NoticeKind, title: string, detail = "", more: Partial<Notice> = {}): Notice => ({
    seq: event.seq,
    at: event.at,
    kind,
    title,
    detail: plainText(detail),
    ...more,
    taskId: event.taskId,
    sessionId: event.sessionId,
  });
  const isTest = data.origin === "test"; // a test of an agent: its result is shown where the test was started
  switch (event.kind) {
    case "ask.created":
      return makeNotice("needsYou", "An agent needs you", data.title ?? "", { askId: data.askId });
    case "turn.stuck":
      return makeNotice("needsYou", "An agent may be stuck");
    case "task.moved":
      if (data.from === data.to) return null;
      if (data.to === "in_review") return makeNotice("finished", "Ready for review", "", { subject: data.title });
      return null;
    case "task.not_started":
      return makeNotice("failed", "A task was not started", data.reason ?? "", { subject: data.title });
    case "attempt.failed":
      if (data.code === "cancelled") return null; // stopped by a person
      return makeNotice("failed", data.code === "over_budget" ? OVER_BUDGET : "An attempt failed", data.error ?? "");
    case "attempt.ready":
      return makeNotice("finished", "An attempt is ready for review");
    case "turn.over_budget":
      if (event.taskId && data.origin !== "person") return null; // the failed attempt has its own notice
      return makeNotice("failed", OVER_BUDGET, data.error ?? "");
    case "turn.completed":
      return event.taskId || isTest ? null : makeNotice("finished", "The agent finished its turn");
    case "turn.failed":
      return event.taskId || isTest ? null : makeNotice("failed", "The agent's turn failed", data.error ?? "");
    default:
      return null;
  }
}

const FOLDER = /\/home\/user\/workspace\//g;

/** Remove Markdown backticks and the workspace folder. */
export const plainText = (text: string): string => text.replace(/`+/g, "").replace(FOLDER, "");

/** Return the first line of a notice, which is shown alone where space is short. */
export const headline = (notice: Notice): string =>
  notice.subject ? `${notice.title}: ${notice.subject}` : notice.title;

const SETTLED = ["ask.answered", "ask.expired", "ask.cancelled"];

/** Return the id of the request that this event settles: answered in any client, expired or cancelled. */
export function settledAsk(event: PlatformEvent): string | null {
  const { askId } = event.data as { askId?: string };
  return SETTLED.includes(event.kind) ? (askId ?? null) : null;
}

const MARGIN_MS = 5000;

/** Return whether the notice's request was settled while this browser was away: the pending requests read at `readAt` lack it. */
export function isSettled(notice: Notice, pending: readonly string[], readAt: number): boolean {
  return notice.askId !== undefined && readAt - (notice.heard ?? 0) > MARGIN_MS && !pending.includes(notice.askId);
}

/** Return the list with one more notice: no duplicates, newest first, at most `KEPT`. */
export function addNotice(known: Notice[], notice: Notice): Notice[] {
  if (known.some((other) => other.seq === notice.seq)) return known;
  return [notice, ...known].sort((a, b) => b.seq - a.seq).slice(0, KEPT);
}

export function useNotices(): {
  notices: Notice[];
  unread: Notice[];
  add: (notice: Notice) => void;
  read: (which: (notice: Notice) => boolean) => void;
} {
  const [notices, , change] = useStored<Notice[]>("notices", []);
  const [seen, , changeSeen] = useStored<number[]>("notices.read", []);
  const unread = notices.filter((notice) => !seen.includes(notice.seq));
  return {
    notices,
    unread,
    add: (notice) => change((now) => addNotice(now, notice)),
    read: (which) => {
      const newly = unread.filter(which).map((notice) => notice.seq);
      if (newly.length) changeSeen((now) => [...new Set([...newly, ...now])].slice(0, KEPT * 2));
    },
  };
}
