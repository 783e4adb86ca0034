import { Link } from "@tanstack/react-router";
import clsx from "clsx";
import { Bell, CircleAlert, CircleCheck, CircleHelp } from "lucide-react";
import { useState } from "react";
import { usePendingAsks } from "@/api/queries/conversation";
import { useSession } from "@/api/queries/sessions";
import type { Ask } from "@/api/types";
import { Button } from "@/ui/button";
import { Popover } from "@/ui/menu";
import { Ago } from "@/ui/time";
import { headline, type Notice, plainText, useNotices } from "./notices";

const ICONS = {
  needsYou: <CircleHelp className="size-4 text-warn" aria-hidden />,
  finished: <CircleCheck className="size-4 text-ok" aria-hidden />,
  failed: <CircleAlert className="size-4 text-bad" aria-hidden />,
};

/** Pending requests and notifications. `small`: an item of the phone's bottom bar, with its label below the icon. */
export function Inbox({ small = false }: { small?: boolean }) {
  const known = useNotices();
  const [open, setOpen] = useState(false);
  const close = () => setOpen(false);
  const asks = usePendingAsks().data ?? [];
  // pending requests come from the server; hide this browser's notice of the same request
  const isListed = (notice: Notice) => asks.some((ask) => ask.id === notice.askId);
  const notices = known.notices.filter((notice) => !isListed(notice));
  const unread = known.unread.filter((notice) => !isListed(notice));
  const count = unread.length + asks.length;
  // the visible text and what it counts: people who speak to their computer say what they see
  const label = `${count ? `Inbox ${count}` : "Inbox"}: ${unread.length} unread, ${asks.length} waiting for an answer`;
  return (
    <Popover
      label="Inbox"
      align="start"
      open={open}
      onOpenChange={setOpen}
      className="w-[min(24rem,92vw)] !p-0"
      trigger={
        <button
          type="button"
          aria-label={label}
          className={clsx(
            "relative text-soft",
            small
              ? "flex flex-1 flex-col items-center gap-0.5 py-1.5 text-2xs"
              : "grid size-8 place-items-center rounded-md hover:bg-hover hover:text-text",
          )}
        >
          <Bell className={small ? "size-5" : "size-4"} aria-hidden />
          {small && "Inbox "}
          {count > 0 && (
            <span
              className={clsx(
                "absolute top-0 grid h-4 min-w-4 place-items-center rounded-full bg-accent px-1 text-2xs font-semibold text-on-accent tabular-nums",
                small ? "left-1/2 ml-1" : "right-0",
              )}
            >
              {count}
            </span>
          )}
        </button>
      }
    >
      <div className="flex items-center gap-2 border-b px-3 py-2">
        <h2 className="mr-auto text-[13px] font-semibold">Inbox</h2>
        <Button size="sm" look="ghost" disabled={!unread.length} onClick={() => known.read(() => true)}>
          Mark all as read
        </Button>
      </div>
      <ul className="max-h-96 overflow-y-auto py-1">
        {asks.map((ask) => (
          <li key={ask.id}>
            <AskLink ask={ask} onOpen={close} />
          </li>
        ))}
        {notices.length + asks.length === 0 && (
          <li className="px-3 py-6 text-center text-[13px] text-soft">No notifications yet.</li>
        )}
        {notices.map((notice) => (
          <li key={notice.seq}>
            <NoticeLink one={notice} unread={unread.includes(notice)} onOpen={close} />
          </li>
        ))}
      </ul>
    </Popover>
  );
}

/** A pending request, listed even if this browser never received its event. */
function AskLink({ ask, onOpen }: { ask: Ask; onOpen: () => void }) {
  const about = useSession(ask.sessionId).data;
  return (
    <Row
      kind="needsYou"
      title={about ? `An agent needs you: ${about.title}` : "An agent needs you"}
      detail={plainText(ask.title)}
      at={ask.createdAt}
      taskId={about?.taskId ?? null}
      sessionId={ask.sessionId}
      marked
      onOpen={onOpen}
    />
  );
}

function NoticeLink({ one, unread, onOpen }: { one: Notice; unread: boolean; onOpen: () => void }) {
  return <Row {...one} title={headline(one)} marked={unread} unread={unread} onOpen={onOpen} />;
}

function Row({
  kind,
  title,
  detail,
  at,
  taskId,
  sessionId,
  marked,
  unread = false,
  onOpen,
}: Pick<Notice, "kind" | "title" | "detail" | "at" | "taskId" | "sessionId"> & {
  marked: boolean;
  unread?: boolean;
  onOpen: () => void;
}) {
  const look = clsx("flex gap-2 px-3 py-2 hover:bg-hover", marked && "bg-accent-soft");
  const inner = (
    <>
      <span className="mt-0.5 shrink-0">{ICONS[kind]}</span>
      <span className="min-w-0 flex-1">
        <span className={clsx("block text-[13px]", marked && "font-medium")}>{title}</span>
        {detail && <span className="line-clamp-2 text-xs break-words text-soft">{detail}</span>}
        <Ago at={at} className="text-2xs text-faint" />
      </span>
      {unread && <span className="sr-only">unread</span>}
    </>
  );
  return taskId ? (
    <Link to="/tasks/$taskId" params={{ taskId }} className={look} onClick={onOpen}>
      {inner}
    </Link>
  ) : (
    <Link to="/sessions/$sessionId" params={{ sessionId: sessionId ?? "" }} className={look} onClick={onOpen}>
      {inner}
    </Link>
  );
}
