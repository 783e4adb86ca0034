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
  detail: string;
  taskId: string | null;
  sessionId: string | null;
}

const KEPT = 60;

/** What an event means for a person who is not looking; null for most. */
export function notice(event: PlatformEvent): Notice | null {
  const data = event.data as {
    title?: string;
    error?: string | null;
    code?: string | null;
    to?: string;
    from?: string;
    origin?: string;
  };
  const made = (kind: NoticeKind, title: string, detail = ""): Notice => ({
    seq: event.seq,
    at: event.at,
    kind,
    title,
    detail,
    taskId: event.taskId,
    sessionId: event.sessionId,
  });
  switch (event.kind) {
    case "ask.created":
      return made("needsYou", "An agent needs you", data.title ?? "");
    case "turn.stuck":
      return made("needsYou", "An agent seems to be stuck");
    case "task.moved":
      if (data.from === data.to) return null;
      if (data.to === "in_review") return made("finished", "Ready for review", data.title);
      return null;
    case "attempt.failed":
      return made("failed", "An attempt failed", data.error ?? "");
    case "attempt.ready":
      return made("finished", "An attempt is ready to be picked");
    case "turn.over_budget":
      return made("failed", "Stopped at the budget", data.error ?? "");
    case "turn.completed":
      return event.taskId ? null : made("finished", "The agent has finished its turn");
    case "turn.failed":
      return event.taskId ? null : made("failed", "The agent's turn failed", data.error ?? "");
    default:
      return null;
  }
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
  const [notices, store] = useStored<Notice[]>("notices", []);
  const [seen, setSeen] = useStored<number[]>("notices.read", []);
  const unread = notices.filter((one) => !seen.includes(one.seq));
  return {
    notices,
    unread,
    add: (one) => store(added(notices, one)),
    read: (which) => {
      const newly = unread.filter(which).map((one) => one.seq);
      if (newly.length) setSeen([...newly, ...seen].slice(0, KEPT * 2));
    },
  };
}
