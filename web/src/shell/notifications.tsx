import { useNavigate } from "@tanstack/react-router";
import { useEffect } from "react";
import { useStored } from "@/lib/stored";
import { useEvents } from "@/live/context";
import { toast } from "@/ui/toast";
import { type Notice, notice, useNotices } from "./notices";

/** Turns events into toasts, into notices of the browser when nobody looks at the page, and into marks in its title. */
export function Notifications() {
  const navigate = useNavigate();
  const { unread, add } = useNotices();
  const [needsYou] = useStored("notify.needsYou", true);
  const [finished] = useStored("notify.finished", true);
  const [failures] = useStored("notify.failed", true);
  const wanted = { needsYou, finished, failed: failures };

  const go = (one: Notice) => {
    if (one.taskId) void navigate({ to: "/tasks/$taskId", params: { taskId: one.taskId } });
    else if (one.sessionId) void navigate({ to: "/sessions/$sessionId", params: { sessionId: one.sessionId } });
  };

  useEvents((event) => {
    const one = notice(event);
    if (!one) return;
    if (isShown(one)) return; // whoever looks at it sees it there
    add(one);
    if (!wanted[one.kind]) return;
    if (document.visibilityState === "visible") {
      const say = one.kind === "failed" ? toast.error : one.kind === "needsYou" ? toast.warning : toast.success;
      say(one.title, {
        id: `notice-${one.seq}`,
        description: one.detail.slice(0, 200),
        action: { label: "Open", onClick: () => go(one) },
      });
    } else if ("Notification" in window && Notification.permission === "granted") {
      const shown = new Notification(one.title, {
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
  });

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

function isShown(one: Notice): boolean {
  if (document.visibilityState !== "visible") return false;
  const path = location.pathname;
  return (
    (one.taskId !== null && path === `/tasks/${one.taskId}`) ||
    (one.sessionId !== null && path === `/sessions/${one.sessionId}`)
  );
}
