import { ArrowDownToLine, Search, WrapText } from "lucide-react";
import { type ReactNode, useCallback, useEffect, useMemo, useRef, useState } from "react";
import { count, pluralize } from "@/lib/format";
import { useStored } from "@/lib/stored";
import { Button, IconButton } from "@/ui/button";
import { CopyButton } from "@/ui/code";
import { LogFind } from "./log-find";
import { type Filter, LogRows } from "./log-rows";
import { LogSearch, type Match } from "./log-search";
import type { LogStore } from "./log-store";
import { LogViewport, type Viewport } from "./log-viewport";

const SEARCH_MS = 5;
const GAP_MS = 50; // Minimum time between two renders; faster is not readable and blocks the page.
const TOLD_MS = 400; // Minimum time between two updates of the line and match counts.
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
  const [, setTold] = useState(0);
  const viewport = useRef<Viewport>(null);
  const panel = useRef<HTMLDivElement>(null);

  const rows = useMemo(() => {
    const made = new LogRows(store, filter, wrap ? columns : null);
    made.sync();
    return made;
  }, [store, filter, wrap, columns]);
  const search = useMemo(
    () => (finding && query ? new LogSearch(store, filter, query, exact) : null),
    [store, filter, finding, query, exact],
  );

  useEffect(() => {
    let frame = 0;
    let pause: ReturnType<typeof setTimeout> | undefined;
    let told = 0;
    let jump = search !== null; // Jump to the first match once.
    const go = (match: Match | undefined) => {
      setCurrent(match ?? null);
      if (!match) return;
      setFollow(false);
      viewport.current?.show(match.line, match.from);
    };
    const draw = () => {
      frame = 0;
      const began = performance.now();
      const gone = rows.sync();
      const searched = search ? search.sync(SEARCH_MS) : true;
      viewport.current?.draw(gone);
      if (jump && search && (searched || search.matches.length)) {
        jump = false;
        go(search.matches[search.near(viewport.current?.top() ?? 0)]);
      }
      if (began - told > TOLD_MS) {
        told = began;
        setTold((n) => n + 1);
      }
      pause = setTimeout(
        () => {
          pause = undefined;
          if (drawn !== store.version || !searched) plan();
          else if (told !== 0) setTold((n) => n + 1); // Show the final counts.
        },
        Math.max(GAP_MS, 3 * (performance.now() - began)),
      );
      drawn = store.version;
    };
    let drawn = -1;
    const plan = () => {
      if (!frame && !pause) frame = requestAnimationFrame(draw);
    };
    plan();
    const leave = store.subscribe(plan);
    return () => {
      leave();
      cancelAnimationFrame(frame);
      clearTimeout(pause);
    };
  }, [store, rows, search]);

  const step = useCallback(
    (by: 1 | -1) => {
      const matches = search?.matches ?? [];
      if (!matches.length) return;
      const at = current ? matches.findIndex((one) => one.line === current.line && one.from === current.from) : -1;
      const next = matches[(at + by + matches.length) % matches.length] as Match;
      setFollow(false);
      setCurrent(next);
      viewport.current?.show(next.line, next.from);
    },
    [search, current],
  );

  useEffect(() => {
    const element = panel.current as HTMLElement;
    const pressed = (event: KeyboardEvent) => {
      if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "f") {
        event.preventDefault();
        setFinding(true);
        element.querySelector<HTMLInputElement>("[data-find]")?.select();
      }
    };
    element.addEventListener("keydown", pressed);
    return () => element.removeEventListener("keydown", pressed);
  }, []);

  const close = () => {
    setFinding(false);
    setCurrent(null);
    viewport.current?.focus();
  };
  const total = search?.matches.length ?? 0;
  const place = current
    ? (search?.matches.findIndex((one) => one.line === current.line && one.from === current.from) ?? -1) + 1
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
          place={place}
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
