import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import clsx from "clsx";
import { Bell, CircleAlert, CircleCheck, CircleHelp } from "lucide-react";
import { pendingAsks } from "@/api/queries";
import { Button } from "@/ui/button";
import { Popover } from "@/ui/menu";
import { Ago } from "@/ui/time";
import { headline, type Notice, useNotices } from "./notices";

const ICONS = {
  needsYou: <CircleHelp className="size-4 text-warn" aria-hidden />,
  finished: <CircleCheck className="size-4 text-ok" aria-hidden />,
  failed: <CircleAlert className="size-4 text-bad" aria-hidden />,
};

/** What waits for a person, and what has happened since they looked. `small`: in the bar of a phone, with its name below. */
export function Inbox({ small = false }: { small?: boolean }) {
  const { notices, unread, read } = useNotices();
  const asks = useQuery(pendingAsks);
  const waiting = asks.data?.length ?? 0;
  const label = `${small ? "Inbox" : "Notifications"}: ${unread.length} unread, ${waiting} waiting for an answer`;
  return (
    <Popover
      label="Notifications"
      align="start"
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
          {small && "Inbox"}
          {unread.length + waiting > 0 && (
            <span
              className={clsx(
                "absolute top-0 grid h-4 min-w-4 place-items-center rounded-full bg-accent px-1 text-2xs font-semibold text-on-accent tabular-nums",
                small ? "left-1/2 ml-1" : "right-0",
              )}
            >
              {Math.max(unread.length, waiting)}
            </span>
          )}
        </button>
      }
    >
      <div className="flex items-center gap-2 border-b px-3 py-2">
        <h2 className="mr-auto text-[13px] font-semibold">Notifications</h2>
        <Button size="sm" look="ghost" disabled={!unread.length} onClick={() => read(() => true)}>
          Mark all as read
        </Button>
      </div>
      <ul className="max-h-96 overflow-y-auto py-1">
        {notices.length === 0 && (
          <li className="px-3 py-6 text-center text-[13px] text-soft">Nothing has happened yet.</li>
        )}
        {notices.map((one) => (
          <li key={one.seq}>
            <NoticeLink one={one} unread={unread.includes(one)} />
          </li>
        ))}
      </ul>
    </Popover>
  );
}

function NoticeLink({ one, unread }: { one: Notice; unread: boolean }) {
  const look = clsx("flex gap-2 px-3 py-2 hover:bg-hover", unread && "bg-accent-soft");
  const inner = (
    <>
      <span className="mt-0.5 shrink-0">{ICONS[one.kind]}</span>
      <span className="min-w-0 flex-1">
        <span className={clsx("block text-[13px]", unread && "font-medium")}>{headline(one)}</span>
        {one.detail && <span className="line-clamp-2 text-xs break-words text-soft">{one.detail}</span>}
        <Ago at={one.at} className="text-2xs text-faint" />
      </span>
      {unread && <span className="sr-only">unread</span>}
    </>
  );
  return one.taskId ? (
    <Link to="/tasks/$taskId" params={{ taskId: one.taskId }} className={look}>
      {inner}
    </Link>
  ) : (
    <Link to="/sessions/$sessionId" params={{ sessionId: one.sessionId ?? "" }} className={look}>
      {inner}
    </Link>
  );
}
