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

  const go = (notice: Notice) => {
    if (notice.taskId) void navigate({ to: "/tasks/$taskId", params: { taskId: notice.taskId } });
    else if (notice.sessionId) void navigate({ to: "/sessions/$sessionId", params: { sessionId: notice.sessionId } });
  };

  const answered = useRef(new Set<string>());
  const asks = usePendingAsks();
  const path = useLocation({ select: (location) => location.pathname });
  // biome-ignore lint/correctness/useExhaustiveDependencies: runs when the pending requests were read or the page has changed
  useEffect(() => {
    const pending = asks.data?.map((ask) => ask.id);
    const gone = (notice: Notice) =>
      isAbout(notice, path) || (pending !== undefined && isSettled(notice, pending, asks.dataUpdatedAt));
    for (const notice of unread.filter(gone)) toast.dismiss(`notice-${notice.seq}`);
    read(gone);
  }, [asks.dataUpdatedAt, path, unread.length]);

  /** Return the title of the task or session, or undefined if it cannot be read. */
  const subjectOf = async (notice: Notice): Promise<string | undefined> => {
    if (notice.subject) return notice.subject;
    try {
      if (notice.taskId) return (await readTask(notice.taskId)).title;
      if (notice.sessionId) return (await readSession(notice.sessionId)).title;
    } catch {
      // deleted, or the platform is unreachable: show the notice without it
    }
    return undefined;
  };

  useEvents((event) => {
    const settled = settledAsk(event);
    if (settled) {
      answered.current.add(settled);
      for (const notice of unread) if (notice.askId === settled) toast.dismiss(`notice-${notice.seq}`);
      read((notice) => notice.askId === settled);
    }
    const notice = noticeOf(event);
    if (!notice) return;
    if (isShown(notice)) return; // the open page shows it already
    void subjectOf(notice).then((subject) => notify({ ...notice, subject, heard: Date.now() }));
  });

  const notify = (notice: Notice) => {
    if (notice.askId && answered.current.has(notice.askId)) return; // answered in the meantime
    add(notice);
    if (!wanted[notice.kind]) return;
    if (document.visibilityState === "visible") {
      const show = notice.kind === "failed" ? toast.error : notice.kind === "needsYou" ? toast.warning : toast.success;
      show(headline(notice), {
        id: `notice-${notice.seq}`,
        description: notice.detail.slice(0, 200),
        action: { label: "Open", onClick: () => go(notice) },
      });
    } else if ("Notification" in window && Notification.permission === "granted") {
      const shown = new Notification(headline(notice), {
        body: notice.detail.slice(0, 200),
        tag: `sandyard-${notice.seq}`,
        icon: "/favicon.svg",
      });
      shown.onclick = () => {
        window.focus();
        go(notice);
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

const isShown = (notice: Notice): boolean =>
  document.visibilityState === "visible" && isAbout(notice, location.pathname);

function isAbout(notice: Notice, path: string): boolean {
  return (
    (notice.taskId !== null && path === `/tasks/${notice.taskId}`) ||
    (notice.sessionId !== null && path === `/sessions/${notice.sessionId}`)
  );
}
