import clsx from "clsx";
import { memo, type ReactNode } from "react";
import { type AnsiStyle, spans } from "@/lib/ansi";
import { ansiClasses } from "@/ui/ansi";
import type { LogSearch } from "./log-search";
import type { Stream } from "./log-store";

export const ROW_HEIGHT = 18;

export interface RowProps {
  line: number;
  from: number;
  to: number;
  text: string;
  look: AnsiStyle;
  stream: Stream;
  search: LogSearch | null;
  /** The start of the current match, if it is in this line; else -1. */
  current: number;
}

/** One row of a log. Memoized. */
export const LogRow = memo(function LogRow(row: RowProps) {
  return (
    <div
      className={clsx("border-l-2", row.stream === "stderr" ? "border-bad" : "border-transparent")}
      style={{ height: ROW_HEIGHT }}
    >
      <span data-line={row.line} data-from={row.from} className="pl-2 whitespace-pre" style={{ tabSize: 8 }}>
        {renderText(row)}
        {"\n"}
      </span>
    </div>
  );
});

interface Mark {
  from: number;
  to: number;
  isCurrent: boolean;
}

function renderText({ text, look, from, to, line, search, current }: RowProps): ReactNode[] {
  const marks: Mark[] = (search?.inLine(line) ?? []).map((match) => ({ ...match, isCurrent: match.from === current }));
  const elements: ReactNode[] = [];
  let at = 0;
  for (const span of spans(text, look)) {
    const start = Math.max(from, at);
    const end = Math.min(to, at + span.text.length);
    if (start < end) {
      for (const [a, b, mark] of splitAtMarks(start, end, marks)) {
        elements.push(
          <span
            key={a}
            className={clsx(ansiClasses(span.look), mark && (mark.isCurrent ? "log-found-now" : "log-found"))}
          >
            {span.text.slice(a - at, b - at)}
          </span>,
        );
      }
    }
    at += span.text.length;
  }
  return elements;
}

/** Split a range of text into highlighted and plain parts. */
function splitAtMarks(start: number, end: number, marks: Mark[]): [number, number, Mark | null][] {
  const parts: [number, number, Mark | null][] = [];
  let at = start;
  for (const mark of marks) {
    if (mark.to <= at || mark.from >= end) continue;
    if (mark.from > at) parts.push([at, mark.from, null]);
    const until = Math.min(mark.to, end);
    parts.push([Math.max(at, mark.from), until, mark]);
    at = until;
  }
  if (at < end) parts.push([at, end, null]);
  return parts;
}
