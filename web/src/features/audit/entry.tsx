import { Link } from "@tanstack/react-router";
import { ChevronRight } from "lucide-react";
import type { ReactNode } from "react";
import type { Schemas } from "@/api/client";
import { Badge } from "@/ui/badge";
import { Ago } from "@/ui/time";

export type AuditEntry = Schemas["AuditView"];

/** One entry: a line with expandable details. Entries outside the viewport are not laid out, so that long lists stay fast. */
export function Entry({ entry }: { entry: AuditEntry }) {
  return (
    <li className="[contain-intrinsic-size:auto_56px] sm:[contain-intrinsic-size:auto_36px] [content-visibility:auto]">
      <details className="group">
        <summary className="flex cursor-pointer list-none flex-wrap items-center gap-x-3 gap-y-0.5 px-3 py-2 text-[13px] hover:bg-hover [&::-webkit-details-marker]:hidden">
          <ChevronRight
            className="size-3.5 shrink-0 text-faint transition-transform group-open:rotate-90"
            aria-hidden
          />
          <Ago at={entry.at} className="w-20 shrink-0 text-xs text-soft tabular-nums" />
          <span className="min-w-0 flex-1 truncate font-medium sm:w-24 sm:flex-none">
            {entry.userName ?? "no user"}
          </span>
          <Badge tone={entry.outcome === "ok" ? "ok" : "bad"} className="sm:order-last">
            {entry.outcome}
          </Badge>
          <span className="flex min-w-0 basis-full gap-x-3 pl-[26px] sm:flex-1 sm:basis-0 sm:pl-0">
            <code className="shrink-0 font-mono text-xs">{entry.action}</code>
            <span className="min-w-0 truncate font-mono text-xs text-soft">{entry.target}</span>
          </span>
        </summary>
        <dl className="grid grid-cols-[auto_1fr] gap-x-4 gap-y-1 border-t bg-page px-4 py-2.5 text-xs sm:px-9">
          <Pair name="Time">
            {new Date(entry.at).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" })}
          </Pair>
          {entry.userId && (
            <Pair name="User">
              <Link
                to="/audit"
                search={{ user: entry.userId }}
                className="font-mono text-accent underline underline-offset-2"
              >
                {entry.userId}
              </Link>
            </Pair>
          )}
          {entry.means && <Pair name="Authentication">{entry.means}</Pair>}
          {entry.address && <Pair name="Address">{entry.address}</Pair>}
          {entry.target && (
            <Pair name="Target">
              <Link
                to="/audit"
                search={{ target: entry.target }}
                className="font-mono text-accent underline underline-offset-2"
              >
                {entry.target}
              </Link>
            </Pair>
          )}
          {entry.requestId && <Pair name="Request">{entry.requestId}</Pair>}
          {Object.keys(entry.detail).length > 0 && (
            <Pair name="Details">
              <pre className="font-mono break-all whitespace-pre-wrap">{JSON.stringify(entry.detail, null, 2)}</pre>
            </Pair>
          )}
        </dl>
      </details>
    </li>
  );
}

function Pair({ name, children }: { name: string; children: ReactNode }) {
  return (
    <>
      <dt className="text-soft">{name}</dt>
      <dd className="min-w-0 break-all">{children}</dd>
    </>
  );
}
