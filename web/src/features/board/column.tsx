import { defaultRangeExtractor, type Range, useVirtualizer } from "@tanstack/react-virtual";
import clsx from "clsx";
import { ChevronsLeftRight, ChevronsRightLeft } from "lucide-react";
import { memo, useCallback, useEffect, useRef, useState } from "react";
import type { ColumnCount } from "@/api/board-data";
import type { Column as ColumnName, TaskCard } from "@/api/types";
import { COLUMNS } from "@/model/status-labels";
import { countStopped } from "@/model/task-facts";
import { Badge, Dot } from "@/ui/badge";
import { Button, IconButton } from "@/ui/button";
import type { FocusRequest } from "./actions";
import { Card } from "./card";
import { useDrop } from "./use-drop";
import { type BoardView, cardProps } from "./view";

const GAP = 8;
/** Load more when fewer than this many loaded cards are left below. */
const LOAD_AHEAD = 8;

export interface ColumnProps {
  column: ColumnName;
  /** The loaded cards that match the filters. */
  shown: TaskCard[];
  count: ColumnCount;
  /** Load more cards. */
  onMore: (column: ColumnName) => Promise<void>;
  /** The column's limit; only if a single project is shown. */
  limit: number | undefined;
  collapsed: boolean;
  onCollapse: (column: ColumnName, collapsed: boolean) => void;
  view: BoardView;
  find: (id: unknown) => TaskCard | undefined;
  /** The card being dragged cannot be dropped here. */
  rejectsDrop: boolean;
  /** Register a function that focuses a card of this column. */
  register: (column: ColumnName, focus: ((index: number) => void) | null) => void;
  /** The card that gets the focus as soon as it appears. */
  focusRequest: FocusRequest;
}

export const BoardColumn = memo(function BoardColumn(props: ColumnProps) {
  return props.collapsed ? <CollapsedColumn {...props} /> : <ExpandedColumn {...props} />;
});

function ExpandedColumn({
  column,
  shown,
  count,
  onMore,
  limit,
  onCollapse,
  view,
  find,
  rejectsDrop,
  register,
  focusRequest,
}: ColumnProps) {
  const section = useRef<HTMLElement>(null);
  const scroller = useRef<HTMLDivElement>(null);
  const [active, setActive] = useState<string | null>(null);
  const isActiveShown = active !== null && shown.some((card) => card.id === active);
  const tabStopId = isActiveShown ? active : (shown[0]?.id ?? null);
  const activeIndex = isActiveShown ? shown.findIndex((card) => card.id === active) : -1;
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
    // Keep the focused card, which is also the dragged card, mounted while it is out of view.
    rangeExtractor: useCallback(
      (range: Range) => {
        const indexes = defaultRangeExtractor(range);
        return activeIndex < 0 || indexes.includes(activeIndex)
          ? indexes
          : [...indexes, activeIndex].sort((a, b) => a - b);
      },
      [activeIndex],
    ),
  });
  const dropPlace = useDrop(section, scroller, { column, shown, find, items: () => list.measurementsCache });

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
    const request = focusRequest.current;
    const index = request?.column === column ? shown.findIndex((card) => card.id === request.id) : -1;
    if (index < 0) return;
    focusRequest.current = null;
    focus(index);
  }, [shown, column, focus, focusRequest]);

  const rest = count.matching - shown.length;
  const lastRendered = list.getVirtualItems().at(-1)?.index ?? 0;
  const isNearEnd = rest > 0 && lastRendered >= shown.length - LOAD_AHEAD;
  const [loading, load] = useLoadMore(column, onMore);
  // Load once each time the end comes into view. After a failure, the button loads again.
  const requestedAt = useRef(0);
  useEffect(() => {
    if (shown.length < requestedAt.current) requestedAt.current = 0;
    if (!isNearEnd || requestedAt.current === shown.length) return;
    requestedAt.current = shown.length;
    load();
  }, [isNearEnd, shown.length, load]);

  const occupied = count.total - count.failed;
  const stopped = countStopped(shown);
  const over = limit !== undefined && occupied > limit;
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
        dropPlace && "border-accent",
        rejectsDrop && "opacity-50",
      )}
    >
      <div className="flex h-10 shrink-0 items-center gap-2 px-2.5">
        <Dot tone={COLUMNS[column].tone} />
        <h2 className="truncate text-[13px] font-semibold">{COLUMNS[column].text}</h2>
        <span className="shrink-0 text-xs text-faint tabular-nums">
          {count.matching !== count.total
            ? `${count.matching} of ${count.total}`
            : count.failed > 0
              ? `${occupied} active`
              : occupied}
        </span>
        {count.failed > stopped && (
          <Badge tone="bad" className="tabular-nums">
            {count.failed - stopped} failed
          </Badge>
        )}
        {stopped > 0 && <Badge className="tabular-nums">{stopped} stopped</Badge>}
        {limit !== undefined && (
          <Badge tone={over ? "bad" : occupied === limit ? "warn" : "idle"} className="tabular-nums">
            {over ? `over the limit of ${limit}` : occupied === limit ? `full, limit ${limit}` : `limit ${limit}`}
          </Badge>
        )}
        <IconButton
          label={`Collapse ${COLUMNS[column].text}`}
          size="sm"
          className="ml-auto"
          onClick={() => onCollapse(column, true)}
        >
          <ChevronsRightLeft className="size-3.5" aria-hidden />
        </IconButton>
      </div>
      <div
        ref={scroller}
        data-scrolls
        className="min-h-0 flex-1 overflow-x-hidden overflow-y-auto px-2 [overflow-anchor:none]"
      >
        {shown.length === 0 && !dropPlace && (
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
                <Card task={task} {...cardProps(task, view)} tabStop={task.id === tabStopId} />
              </li>
            );
          })}
          {dropPlace && (
            <div
              aria-hidden
              data-testid="drop-line"
              className="pointer-events-none absolute inset-x-0 top-0 h-0.5 rounded bg-accent"
              style={{
                transform: `translateY(${(list.measurementsCache[dropPlace.gap]?.start ?? (end ? end.end + GAP : 4)) - GAP / 2 - 1}px)`,
              }}
            />
          )}
        </ul>
        {rest > 0 && (
          <Button size="sm" look="plain" busy={loading} onClick={load} className="mb-3 w-full">
            Show more of {count.matching}
          </Button>
        )}
      </div>
    </section>
  );
}

/** Return whether more cards are being loaded, and a function that loads them. */
function useLoadMore(column: ColumnName, onMore: ColumnProps["onMore"]): [boolean, () => void] {
  const [loading, setLoading] = useState(false);
  const load = useCallback(() => {
    setLoading(true);
    void onMore(column).finally(() => setLoading(false));
  }, [column, onMore]);
  return [loading, load];
}

const EMPTY: Record<ColumnName, string> = {
  backlog: "Tasks that have not started.",
  in_progress: "Move a card here to start it.",
  in_review: "Finished work appears here for review.",
  done: "Merged or accepted tasks.",
  cancelled: "Cancelled tasks.",
};

/** A collapsed column: a narrow strip that still accepts cards. */
function CollapsedColumn({ column, shown, count, onCollapse, find, rejectsDrop, focusRequest }: ColumnProps) {
  const section = useRef<HTMLElement>(null);
  const button = useRef<HTMLButtonElement>(null);
  const dropPlace = useDrop(section, section, { column, shown, find });
  const failed = count.failed - countStopped(shown);
  useEffect(() => {
    const request = focusRequest.current;
    if (request?.column !== column || !shown.some((card) => card.id === request.id)) return;
    focusRequest.current = null;
    button.current?.focus();
  }, [shown, column, focusRequest]);
  return (
    <section
      ref={section}
      aria-label={COLUMNS[column].text}
      data-column={column}
      className={clsx(
        "flex w-10 shrink-0 snap-center flex-col rounded-lg border bg-sunken",
        dropPlace && "border-accent",
        rejectsDrop && "opacity-50",
      )}
    >
      <button
        ref={button}
        type="button"
        aria-expanded={false}
        onClick={() => onCollapse(column, false)}
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
