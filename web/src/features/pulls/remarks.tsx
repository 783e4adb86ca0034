/** The checks, reviews and comments of a pull request. */
import { ExternalLink, Quote } from "lucide-react";
import type { ReactNode } from "react";
import { sanitizeHref } from "@/lib/links";
import { type Remark, type Run, runStatus } from "@/model/forge";
import { REVIEWS } from "@/model/status-labels";
import { Badge, Dot } from "@/ui/badge";
import { Button } from "@/ui/button";
import { Markdown } from "@/ui/markdown";
import { Ago } from "@/ui/time";

export function OutgoingLink({ href, children }: { href: string | null; children: ReactNode }) {
  const safe = sanitizeHref(href ?? undefined);
  if (!safe) return <span>{children}</span>;
  return (
    <a
      href={safe}
      target="_blank"
      rel="noreferrer noopener"
      className="inline-flex items-center gap-1 hover:text-accent hover:underline"
    >
      {children}
      <ExternalLink className="size-3 shrink-0 text-faint" aria-hidden />
      <span className="sr-only">(opens the forge)</span>
    </a>
  );
}

export function Runs({ runs }: { runs: Run[] }) {
  return (
    <ul className="divide-y">
      {runs.map((run, index) => {
        const word = runStatus(run);
        return (
          <li key={`${run.name}:${index}`} className="px-3 py-1.5 text-[13px]">
            <div className="flex items-center gap-2">
              <Dot tone={word.tone} pulse={word.busy ?? false} />
              <span className="min-w-0 flex-1 [overflow-wrap:anywhere]">
                <OutgoingLink href={run.url}>{run.name}</OutgoingLink>
              </span>
              <span className="text-xs text-soft">{word.text}</span>
            </div>
            {run.summary && word.tone === "bad" && (
              <details className="mt-1 pl-4 text-xs text-soft">
                <summary className="cursor-pointer">Details</summary>
                <div className="mt-1 max-h-64 overflow-y-auto">
                  <Markdown text={run.summary} />
                </div>
              </details>
            )}
          </li>
        );
      })}
    </ul>
  );
}

/** Reviews and comments. `onQuote` offers to quote them in a message to the agent. */
export function Remarks({ remarks, onQuote }: { remarks: Remark[]; onQuote?: ((remark: Remark) => void) | undefined }) {
  return (
    <ul className="divide-y">
      {remarks.map((remark) => {
        const verdict =
          remark.kind === "review" ? REVIEWS[remark.state?.toLowerCase() as keyof typeof REVIEWS] : undefined;
        return (
          <li key={`${remark.kind}:${remark.id}`} className="px-3 py-2 text-[13px]">
            <p className="flex flex-wrap items-center gap-x-2 text-xs text-soft">
              <span className="font-medium text-text">{remark.author}</span>
              {verdict && <Badge tone={verdict.tone}>{verdict.text}</Badge>}
              {remark.path && (
                <span className="font-mono text-2xs [overflow-wrap:anywhere]">
                  {remark.path}
                  {remark.line !== null && `:${remark.line}`}
                </span>
              )}
              <OutgoingLink href={remark.url}>
                <Ago at={remark.at} />
              </OutgoingLink>
              {onQuote && remark.text && (
                <Button size="sm" look="ghost" className="ml-auto" onClick={() => onQuote(remark)}>
                  <Quote className="size-3.5" aria-hidden /> Quote in a message
                </Button>
              )}
            </p>
            {remark.text && (
              <div className="mt-1">
                <Markdown text={remark.text} />
              </div>
            )}
          </li>
        );
      })}
    </ul>
  );
}
