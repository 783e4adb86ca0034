import { ArrowDownToLine, Search, WrapText } from "lucide-react";
import { type ReactNode, useCallback, useEffect, useMemo, useReducer, useRef, useState } from "react";
import { count, pluralize } from "@/lib/format";
import { useStored } from "@/lib/stored";
import { Button, IconButton } from "@/ui/button";
import { CopyButton } from "@/ui/code";
import { LogFind } from "./log-find";
import { type Filter, LogRows } from "./log-rows";
import { LogSearch, type Match } from "./log-search";
import type { LogStore } from "./log-store";
import { LogViewport, type Viewport } from "./log-viewport";

const SEARCH_BUDGET_MS = 5; // Maximum time to search during one render.
const RENDER_INTERVAL_MS = 50; // Minimum time between two renders; faster is not readable and blocks the page.
const COUNT_INTERVAL_MS = 400; // Minimum time between two updates of the line and match counts.
const FILTERS: [Filter, string][] = [
  ["both", "Both"],
  ["stdout", "stdout"],
  ["stderr", "stderr"],
];

interface Props {
  store: LogStore;
  label: string;
  tools?: ReactNode;
  note?: ReactNode;
  /** The text shown if there are no lines. */
  empty: string;
  /** More output may follow. */
  live: boolean;
}

/** A growing log with search, filter, wrapping and copying. It follows the end until the user scrolls up. */
export function LogViewer({ store, label, tools, note, empty, live }: Props) {
  const [filter, setFilter] = useState<Filter>("both");
  const [wrap, setWrap] = useStored("log.wrap", false);
  const [columns, setColumns] = useState(80);
  const [follow, setFollow] = useState(true);
  const [finding, setFinding] = useState(false);
  const [query, setQuery] = useState("");
  const [exact, setExact] = useState(false);
  const [current, setCurrent] = useState<Match | null>(null);
  const [, updateCounts] = useReducer((n: number) => n + 1, 0);
  const viewport = useRef<Viewport>(null);
  const panel = useRef<HTMLDivElement>(null);

  const rows = useMemo(() => {
    const created = new LogRows(store, filter, wrap ? columns : null);
    created.sync();
    return created;
  }, [store, filter, wrap, columns]);
  const search = useMemo(
    () => (finding && query ? new LogSearch(store, filter, query, exact) : null),
    [store, filter, finding, query, exact],
  );

  const showMatch = useCallback((match: Match) => {
    setCurrent(match);
    setFollow(false);
    viewport.current?.show(match.line, match.from);
  }, []);

  useEffect(() => {
    let frame = 0;
    let pause: ReturnType<typeof setTimeout> | undefined;
    let countedAt = 0;
    let jump = search !== null; // Jump to the first match once.
    let drawn = -1; // The version of the store that was drawn last.
    const draw = () => {
      frame = 0;
      const startedAt = performance.now();
      const removed = rows.sync();
      const searched = search ? search.sync(SEARCH_BUDGET_MS) : true;
      viewport.current?.draw(removed);
      if (jump && search && (searched || search.matches.length)) {
        jump = false;
        const first = search.matches[search.findIndexFrom(viewport.current?.top() ?? 0)];
        if (first) showMatch(first);
        else setCurrent(null);
      }
      if (startedAt - countedAt > COUNT_INTERVAL_MS) {
        countedAt = startedAt;
        updateCounts();
      }
      pause = setTimeout(
        () => {
          pause = undefined;
          if (drawn !== store.version || !searched) schedule();
          else if (countedAt !== 0) updateCounts(); // Show the final counts.
        },
        Math.max(RENDER_INTERVAL_MS, 3 * (performance.now() - startedAt)),
      );
      drawn = store.version;
    };
    const schedule = () => {
      if (!frame && !pause) frame = requestAnimationFrame(draw);
    };
    schedule();
    const unsubscribe = store.subscribe(schedule);
    return () => {
      unsubscribe();
      cancelAnimationFrame(frame);
      clearTimeout(pause);
    };
  }, [store, rows, search, showMatch]);

  const step = useCallback(
    (by: 1 | -1) => {
      const matches = search?.matches ?? [];
      if (!matches.length) return;
      const at = current
        ? matches.findIndex((match) => match.line === current.line && match.from === current.from)
        : -1;
      showMatch(matches[(at + by + matches.length) % matches.length] as Match);
    },
    [search, current, showMatch],
  );

  useEffect(() => {
    const element = panel.current as HTMLElement;
    const handleKeyDown = (event: KeyboardEvent) => {
      if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "f") {
        event.preventDefault();
        setFinding(true);
        element.querySelector<HTMLInputElement>("[data-find]")?.select();
      }
    };
    element.addEventListener("keydown", handleKeyDown);
    return () => element.removeEventListener("keydown", handleKeyDown);
  }, []);

  const close = () => {
    setFinding(false);
    setCurrent(null);
    viewport.current?.focus();
  };
  const total = search?.matches.length ?? 0;
  const matchNumber = current
    ? (search?.matches.findIndex((match) => match.line === current.line && match.from === current.from) ?? -1) + 1
    : 0;

  return (
    <div ref={panel} className="relative flex min-h-0 flex-1 flex-col">
      <div className="flex shrink-0 flex-wrap items-center gap-1 border-b px-2 py-1">
        <fieldset className="flex rounded-md border">
          <legend className="sr-only">Streams</legend>
          {FILTERS.map(([value, text]) => (
            <button
              key={value}
              type="button"
              aria-pressed={filter === value}
              onClick={() => setFilter(value)}
              className="h-6 px-2 text-2xs text-soft first:rounded-l-md last:rounded-r-md hover:bg-hover aria-pressed:bg-sunken aria-pressed:font-medium aria-pressed:text-text"
            >
              {text}
            </button>
          ))}
        </fieldset>
        <span className="mr-auto px-1 text-2xs text-faint tabular-nums">{pluralize(store.end, "line")}</span>
        <IconButton
          size="sm"
          label="Search (Ctrl+F)"
          aria-pressed={finding}
          onClick={() => (finding ? close() : setFinding(true))}
        >
          <Search className="size-3.5" aria-hidden />
        </IconButton>
        <IconButton
          size="sm"
          label="Wrap long lines"
          aria-pressed={wrap}
          className="aria-pressed:bg-sunken aria-pressed:text-text"
          onClick={() => setWrap(!wrap)}
        >
          <WrapText className="size-3.5" aria-hidden />
        </IconButton>
        <CopyButton label="Copy all" text={() => rows.texts().join("\n")} />
        {tools}
      </div>
      {finding && (
        <LogFind
          query={query}
          onQuery={setQuery}
          exact={exact}
          onExact={setExact}
          place={matchNumber}
          total={total}
          more={search?.full ?? false}
          onStep={step}
          onClose={close}
        />
      )}
      {(note || store.first > 0) && (
        <p className="shrink-0 border-b bg-warn-soft px-3 py-1 text-xs text-warn" role="note">
          {store.first > 0 &&
            `The first ${count(store.first)} lines are no longer shown. Download the output to see all lines. `}
          {note}
        </p>
      )}
      {store.end === 0 && empty && (
        <p role="status" className="shrink-0 px-4 py-6 text-center text-[13px] text-soft">
          {empty}
        </p>
      )}
      <LogViewport
        ref={viewport}
        store={store}
        rows={rows}
        search={search}
        current={current}
        follow={follow}
        onFollow={setFollow}
        onColumns={setColumns}
        label={label}
      />
      {!follow && (
        <Button
          size="sm"
          look="primary"
          className="absolute right-5 bottom-3 shadow-float"
          onClick={() => setFollow(true)}
        >
          <ArrowDownToLine className="size-3.5" aria-hidden />
          {live ? "Follow" : "Scroll to end"}
        </Button>
      )}
    </div>
  );
}
