import clsx from "clsx";
import { type RefObject, useEffect, useState } from "react";
import type { ColumnCount } from "@/api/board-data";
import { COLUMN_ORDER, type Columns } from "@/api/card-order";
import type { Column } from "@/api/types";
import { COLUMNS } from "@/model/status-labels";
import { countStopped } from "@/model/task-facts";

export function showColumn(board: HTMLElement | null, column: Column): void {
  board?.querySelector(`[data-column="${column}"]`)?.scrollIntoView({ inline: "center", block: "nearest" });
}

/** On a phone, one column fills the screen: show which one it is, and switch to the others. */
export function ColumnPicker({
  board,
  counts,
  shown,
  onPick,
}: {
  board: RefObject<HTMLElement | null>;
  counts: Record<Column, ColumnCount>;
  shown: Columns;
  onPick: (column: Column) => void;
}) {
  const [visible, setVisible] = useState<Column>("backlog");
  useEffect(() => {
    const root = board.current;
    if (!root) return;
    const observer = new IntersectionObserver(
      (entries) => {
        const shownEntry = entries.find((entry) => entry.isIntersecting);
        if (shownEntry) setVisible((shownEntry.target as HTMLElement).dataset.column as Column);
      },
      { root, threshold: 0.6 },
    );
    for (const element of root.querySelectorAll("[data-column]")) observer.observe(element);
    return () => observer.disconnect();
  }, [board]);
  const pick = (column: Column) => {
    onPick(column);
    requestAnimationFrame(() => showColumn(board.current, column));
  };
  return (
    <nav aria-label="Columns" className="flex shrink-0 gap-1 overflow-x-auto px-3 pb-2 sm:hidden">
      {COLUMN_ORDER.map((column) => (
        <button
          key={column}
          type="button"
          aria-current={visible === column || undefined}
          onClick={() => pick(column)}
          className={clsx(
            "flex h-7 shrink-0 items-center gap-1 rounded-md px-2 text-xs",
            visible === column ? "bg-accent-soft font-medium text-accent" : "text-soft hover:bg-hover",
          )}
        >
          {COLUMNS[column].text}
          <CardCount count={counts[column]} stopped={countStopped(shown[column])} />
        </button>
      ))}
    </nav>
  );
}

/** The number of cards; with filters, of matching cards. Failed and stopped ones are counted separately. */
function CardCount({ count: { total, matching, failed }, stopped }: { count: ColumnCount; stopped: number }) {
  if (matching !== total) return <span className="tabular-nums">{matching}</span>;
  return (
    <>
      <span className="tabular-nums">{total - failed}</span>
      {failed > stopped && <span className="text-bad tabular-nums">· {failed - stopped} failed</span>}
      {stopped > 0 && <span className="tabular-nums">· {stopped} stopped</span>}
    </>
  );
}
