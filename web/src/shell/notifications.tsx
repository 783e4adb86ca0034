import { useLocation, useNavigate } from "@tanstack/react-router";
import { useEffect, useRef } from "react";
import { usePendingAsks } from "@/api/queries/conversation";
import { useReadSession } from "@/api/queries/sessions";
import { useReadTask } from "@/api/queries/tasks";
import { useStored } from "@/lib/stored";
import { useEvents } from "@/live/context";
import { toast } from "@/ui/toast";
import { headline, isSettled, type Notice, noticeOf, settledAsk, useNotices } from "./notices";

/** Turn events into toasts, into browser notifications while the page is hidden, and into a count in the page title. */
export function Notifications() {
  const navigate = useNavigate();
  const readTask = useReadTask();
  const readSession = useReadSession();
  const { unread, add, read } = useNotices();
  const [needsYou] = useStored("notify.needsYou", true);
  const [finished] = useStored("notify.finished", true);
  const [failures] = useStored("notify.failed", true);
  const wanted = { needsYou, finished, failed: failures };

  const go = (one: Notice) => {
    if (one.taskId) void navigate({ to: "/tasks/$taskId", params: { taskId: one.taskId } });
    else if (one.sessionId) void navigate({ to: "/sessions/$sessionId", params: { sessionId: one.sessionId } });
  };

  const answered = useRef(new Set<string>());
  const asks = usePendingAsks();
  const path = useLocation({ select: (location) => location.pathname });
  // biome-ignore lint/correctness/useExhaustiveDependencies: runs when the pending requests were read or the page has changed
  useEffect(() => {
    const pending = asks.data?.map((one) => one.id);
    const gone = (one: Notice) =>
      isAbout(one, path) || (pending !== undefined && isSettled(one, pending, asks.dataUpdatedAt));
    for (const one of unread.filter(gone)) toast.dismiss(`notice-${one.seq}`);
    read(gone);
  }, [asks.dataUpdatedAt, path, unread.length]);

  /** Return the title of the task or session, or undefined if it cannot be read. */
  const subjectOf = async (one: Notice): Promise<string | undefined> => {
    if (one.subject) return one.subject;
    try {
      if (one.taskId) return (await readTask(one.taskId)).title;
      if (one.sessionId) return (await readSession(one.sessionId)).title;
    } catch {
      // deleted, or the platform is unreachable: show the notice without it
    }
    return undefined;
  };

  useEvents((event) => {
    const settled = settledAsk(event);
    if (settled) {
      answered.current.add(settled);
      for (const one of unread) if (one.askId === settled) toast.dismiss(`notice-${one.seq}`);
      read((one) => one.askId === settled);
    }
    const one = noticeOf(event);
    if (!one) return;
    if (isShown(one)) return; // the open page shows it already
    void subjectOf(one).then((subject) => notify({ ...one, subject, heard: Date.now() }));
  });

  const notify = (one: Notice) => {
    if (one.askId && answered.current.has(one.askId)) return; // answered in the meantime
    add(one);
    if (!wanted[one.kind]) return;
    if (document.visibilityState === "visible") {
      const show = one.kind === "failed" ? toast.error : one.kind === "needsYou" ? toast.warning : toast.success;
      show(headline(one), {
        id: `notice-${one.seq}`,
        description: one.detail.slice(0, 200),
        action: { label: "Open", onClick: () => go(one) },
      });
    } else if ("Notification" in window && Notification.permission === "granted") {
      const shown = new Notification(headline(one), {
        body: one.detail.slice(0, 200),
        tag: `sandyard-${one.seq}`,
        icon: "/favicon.svg",
      });
      shown.onclick = () => {
        window.focus();
        go(one);
        shown.close();
      };
    }
  };

  const count = unread.length;
  useEffect(() => {
    const mark = () => {
      const plain = document.title.replace(/^\(\d+\) /, "");
      const wantedTitle = count ? `(${count}) ${plain}` : plain;
      if (document.title !== wantedTitle) document.title = wantedTitle;
    };
    mark();
    const watch = new MutationObserver(mark);
    const title = document.querySelector("title");
    if (title) watch.observe(title, { childList: true });
    return () => watch.disconnect();
  }, [count]);
  return null;
}

const isShown = (one: Notice): boolean => document.visibilityState === "visible" && isAbout(one, location.pathname);

function isAbout(one: Notice, path: string): boolean {
  return (
    (one.taskId !== null && path === `/tasks/${one.taskId}`) ||
    (one.sessionId !== null && path === `/sessions/${one.sessionId}`)
  );
}
