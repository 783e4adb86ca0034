import { defaultRangeExtractor, type Range, useVirtualizer } from "@tanstack/react-virtual";
import clsx from "clsx";
import { ChevronsLeftRight, ChevronsRightLeft } from "lucide-react";
import { memo, useCallback, useEffect, useRef, useState } from "react";
import type { ColumnCount } from "@/api/board-data";
import type { Column as Name, TaskCard } from "@/api/types";
import { COLUMNS } from "@/model/status-labels";
import { countStopped } from "@/model/task-facts";
import { Badge, Dot } from "@/ui/badge";
import { Button, IconButton } from "@/ui/button";
import type { FollowedCard } from "./actions";
import { Card } from "./card";
import { useDrop } from "./use-drop";
import { type BoardView, cardProps } from "./view";

const GAP = 8;
/** Load more when this many loaded cards are left below. */
const AHEAD = 8;

export interface ColumnProps {
  column: Name;
  /** The loaded cards that match the filters. */
  shown: TaskCard[];
  count: ColumnCount;
  /** Load more cards. */
  onMore: (column: Name) => Promise<void>;
  /** The column's limit; only if a single project is shown. */
  limit: number | undefined;
  folded: boolean;
  onFold: (column: Name, folded: boolean) => void;
  view: BoardView;
  find: (id: unknown) => TaskCard | undefined;
  /** The card being dragged cannot be dropped here. */
  closed: boolean;
  /** Register a function that focuses a card of this column. */
  register: (column: Name, focus: ((index: number) => void) | null) => void;
  follow: FollowedCard;
}

export const BoardColumn = memo(function BoardColumn(props: ColumnProps) {
  return props.folded ? <CollapsedColumn {...props} /> : <ExpandedColumn {...props} />;
});

function ExpandedColumn({
  column,
  shown,
  count,
  onMore,
  limit,
  onFold,
  view,
  find,
  closed,
  register,
  follow,
}: ColumnProps) {
  const section = useRef<HTMLElement>(null);
  const scroller = useRef<HTMLDivElement>(null);
  const [active, setActive] = useState<string | null>(null);
  const known = active !== null && shown.some((one) => one.id === active);
  const stop = known ? active : (shown[0]?.id ?? null);
  const kept = known ? shown.findIndex((one) => one.id === active) : -1;
  const list = useVirtualizer({
    count: shown.length,
    getScrollElement: () => scroller.current,
    getItemKey: (index) => shown[index]?.id ?? index,
    estimateSize: () => 92,
    gap: GAP,
    paddingStart: 6,
    paddingEnd: 24,
    overscan: 4,
    useFlushSync: false,
    // Keep the focused card, which is also the dragged one, mounted while it is out of view.
    rangeExtractor: useCallback(
      (range: Range) => {
        const indexes = defaultRangeExtractor(range);
        return kept < 0 || indexes.includes(kept) ? indexes : [...indexes, kept].sort((a, b) => a - b);
      },
      [kept],
    ),
  });
  const place = useDrop(section, scroller, { column, shown, find, items: () => list.measurementsCache });

  const current = useRef({ shown, list });
  current.current = { shown, list };
  const focus = useCallback((index: number) => {
    const id = current.current.shown[index]?.id;
    if (!id) return;
    setActive(id);
    current.current.list.scrollToIndex(index);
    requestAnimationFrame(() => {
      scroller.current?.querySelector<HTMLElement>(`[data-card="${CSS.escape(id)}"]`)?.focus({ preventScroll: true });
      section.current?.scrollIntoView({ block: "nearest", inline: "nearest" });
    });
  }, []);
  useEffect(() => {
    register(column, focus);
    return () => register(column, null);
  }, [register, column, focus]);
  useEffect(() => {
    const wanted = follow.current;
    const index = wanted?.column === column ? shown.findIndex((one) => one.id === wanted.id) : -1;
    if (index < 0) return;
    follow.current = null;
    focus(index);
  }, [shown, column, focus, follow]);

  const rest = count.matching - shown.length;
  const seen = list.getVirtualItems().at(-1)?.index ?? 0;
  const near = rest > 0 && seen >= shown.length - AHEAD;
  const [reading, read] = useLoadMore(column, onMore);
  // Load once per end that comes into view; after a failure, the button loads again.
  const asked = useRef(0);
  useEffect(() => {
    if (shown.length < asked.current) asked.current = 0;
    if (!near || asked.current === shown.length) return;
    asked.current = shown.length;
    read();
  }, [near, shown.length, read]);

  const held = count.total - count.failed;
  const stopped = countStopped(shown);
  const over = limit !== undefined && held > limit;
  const end = list.measurementsCache.at(-1);
  return (
    <section
      ref={section}
      aria-label={COLUMNS[column].text}
      data-column={column}
      onFocus={(event) => {
        const id = (event.target as HTMLElement).closest("li")?.dataset.id;
        if (id) setActive(id);
      }}
      onDragStart={(event) => setActive((event.target as HTMLElement).closest("li")?.dataset.id ?? null)}
      className={clsx(
        "flex min-h-0 w-[86vw] max-w-96 shrink-0 snap-center flex-col rounded-lg border bg-sunken sm:w-auto sm:max-w-none sm:min-w-54 sm:flex-1 sm:basis-0",
        place && "border-accent",
        closed && "opacity-50",
      )}
    >
      <div className="flex h-10 shrink-0 items-center gap-2 px-2.5">
        <Dot tone={COLUMNS[column].tone} />
        <h2 className="truncate text-[13px] font-semibold">{COLUMNS[column].text}</h2>
        <span className="text-xs text-faint tabular-nums">
          {count.matching === count.total ? held : `${count.matching} of ${count.total}`}
        </span>
        {count.failed > stopped && (
          <Badge tone="bad" className="tabular-nums">
            {count.failed - stopped} failed
          </Badge>
        )}
        {stopped > 0 && <Badge className="tabular-nums">{stopped} stopped</Badge>}
        {limit !== undefined && (
          <Badge tone={over ? "bad" : held === limit ? "warn" : "idle"} className="tabular-nums">
            {over ? `over the limit of ${limit}` : held === limit ? `full, limit ${limit}` : `limit ${limit}`}
          </Badge>
        )}
        <IconButton
          label={`Collapse ${COLUMNS[column].text}`}
          size="sm"
          className="ml-auto"
          onClick={() => onFold(column, true)}
        >
          <ChevronsRightLeft className="size-3.5" aria-hidden />
        </IconButton>
      </div>
      <div
        ref={scroller}
        data-scrolls
        className="min-h-0 flex-1 overflow-x-hidden overflow-y-auto px-2 [overflow-anchor:none]"
      >
        {shown.length === 0 && !place && (
          <p className="px-1 py-2 text-xs text-faint">{count.total ? "No matching tasks." : EMPTY[column]}</p>
        )}
        {/* biome-ignore lint/a11y/noRedundantRoles: without bullets, some browsers no longer expose it as a list */}
        <ul role="list" className="relative" style={{ height: list.getTotalSize() }}>
          {list.getVirtualItems().map((item) => {
            const task = shown[item.index];
            if (!task) return null;
            return (
              <li
                key={item.key}
                ref={list.measureElement}
                data-index={item.index}
                data-id={task.id}
                aria-setsize={count.matching}
                aria-posinset={item.index + 1}
                className="absolute inset-x-0 top-0"
                style={{ transform: `translateY(${item.start}px)` }}
              >
                <Card task={task} {...cardProps(task, view)} tabStop={task.id === stop} />
              </li>
            );
          })}
          {place && (
            <div
              aria-hidden
              data-testid="drop-line"
              className="pointer-events-none absolute inset-x-0 top-0 h-0.5 rounded bg-accent"
              style={{
                transform: `translateY(${(list.measurementsCache[place.gap]?.start ?? (end ? end.end + GAP : 4)) - GAP / 2 - 1}px)`,
              }}
            />
          )}
        </ul>
        {rest > 0 && (
          <Button size="sm" look="plain" busy={reading} onClick={read} className="mb-3 w-full">
            Show more of {count.matching}
          </Button>
        )}
      </div>
    </section>
  );
}

/** Return whether more cards are being loaded, and a function that loads them. */
function useLoadMore(column: Name, onMore: ColumnProps["onMore"]): [boolean, () => void] {
  const [reading, setReading] = useState(false);
  const read = useCallback(() => {
    setReading(true);
    void onMore(column).finally(() => setReading(false));
  }, [column, onMore]);
  return [reading, read];
}

const EMPTY: Record<Name, string> = {
  backlog: "Tasks that have not started.",
  in_progress: "Move a card here to start it.",
  in_review: "Finished work appears here for review.",
  done: "Merged or accepted tasks.",
  cancelled: "Cancelled tasks.",
};

/** A collapsed column: a narrow strip that still accepts cards. */
function CollapsedColumn({ column, shown, count, onFold, find, closed, follow }: ColumnProps) {
  const section = useRef<HTMLElement>(null);
  const button = useRef<HTMLButtonElement>(null);
  const place = useDrop(section, section, { column, shown, find });
  const failed = count.failed - countStopped(shown);
  useEffect(() => {
    const wanted = follow.current;
    if (wanted?.column !== column || !shown.some((one) => one.id === wanted.id)) return;
    follow.current = null;
    button.current?.focus();
  }, [shown, column, follow]);
  return (
    <section
      ref={section}
      aria-label={COLUMNS[column].text}
      data-column={column}
      className={clsx(
        "flex w-10 shrink-0 snap-center flex-col rounded-lg border bg-sunken",
        place && "border-accent",
        closed && "opacity-50",
      )}
    >
      <button
        ref={button}
        type="button"
        aria-expanded={false}
        onClick={() => onFold(column, false)}
        className="flex flex-1 flex-col items-center gap-2 rounded-lg py-3 text-soft hover:bg-hover"
      >
        <ChevronsLeftRight className="size-3.5" aria-hidden />
        <span className="sr-only">Expand</span>
        <span className="text-[13px] font-semibold [writing-mode:vertical-rl]">{COLUMNS[column].text}</span>
        <span className="text-xs text-faint tabular-nums">{count.total - count.failed}</span>
        {failed > 0 && (
          <span className="text-xs text-bad tabular-nums">
            {failed}
            <span className="sr-only"> failed</span>
          </span>
        )}
      </button>
    </section>
  );
}
