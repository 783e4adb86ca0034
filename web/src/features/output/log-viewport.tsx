import { type Ref, useCallback, useEffect, useImperativeHandle, useLayoutEffect, useRef, useState } from "react";
import { stripAnsi } from "@/lib/ansi";
import { LogRow, ROW_HEIGHT } from "./log-row";
import type { LogRows } from "./log-rows";
import type { LogSearch, Match } from "./log-search";
import { between, selectedText } from "./log-selection";
import type { LogStore } from "./log-store";

const AROUND = 8;
const HELD = 2000; // The maximum number of rows kept mounted because they are selected.
const NARROW = 480;
const BY_HAND_MS = 1000;
const SETTLE_MS = 150;

export interface Viewport {
  /** Scroll a position into view. */
  show: (line: number, character: number) => void;
  /** Render changes. `gone` rows were dropped at the top; the visible rows keep their position. */
  draw: (gone: number) => void;
  /** Return the first visible line. */
  top: () => number;
  focus: () => void;
}

interface Props {
  ref: Ref<Viewport>;
  store: LogStore;
  rows: LogRows;
  search: LogSearch | null;
  current: Match | null;
  follow: boolean;
  onFollow: (follow: boolean) => void;
  /** Report how many characters fit in a row. */
  onColumns: (columns: number) => void;
  label: string;
}

/** Render only the visible rows. The parent calls `draw` when the store has changed, at most once per frame. */
export function LogViewport({ ref, store, rows, search, current, follow, onFollow, onColumns, label }: Props) {
  const box = useRef<HTMLElement>(null);
  const ruler = useRef<HTMLSpanElement>(null);
  const [size, setSize] = useState({ width: 0, height: 0, character: 7.2 });
  const [top, setTop] = useState(0);
  const [held, setHeld] = useState<[number, number] | null>(null);
  const [, setDrawn] = useState(0);
  const widest = useRef(0);
  const everything = useRef(false);
  const placed = useRef(0);
  const moved = useRef(Number.NEGATIVE_INFINITY);
  const count = rows.length;
  const height = count * ROW_HEIGHT;
  const gutter = size.width < NARROW ? 0 : Math.ceil(Math.max(3, String(store.end).length) * size.character) + 16;
  const scrolled = follow ? Math.max(0, height - size.height) : Math.min(top, Math.max(0, height - size.height));

  useLayoutEffect(() => {
    const element = box.current as HTMLElement;
    const measure = () => {
      const character = (ruler.current?.getBoundingClientRect().width ?? 720) / 100 || 7.2;
      setSize({ width: element.clientWidth, height: element.clientHeight, character });
    };
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    measure();
    return () => observer.disconnect();
  }, []);

  useEffect(() => {
    if (size.width) onColumns(Math.max(8, Math.floor((size.width - gutter - 20) / size.character / 8) * 8));
  }, [size, gutter, onColumns]);

  const place = useCallback((to: number) => {
    const element = box.current as HTMLElement;
    element.scrollTop = to;
    placed.current = element.scrollTop;
    setTop(element.scrollTop);
  }, []);

  useLayoutEffect(() => {
    // After Follow is pressed, scroll events come from the browser, not from the user.
    if (follow) moved.current = Number.NEGATIVE_INFINITY;
  }, [follow]);

  useLayoutEffect(() => {
    const element = box.current as HTMLElement;
    if (!follow) return;
    element.scrollTop = scrolled;
    placed.current = scrolled; // Not read back from the element, which would force a layout.
    // A busy browser may drop the scroll position: set it again when the layout has settled.
    const settled = setTimeout(() => {
      if (performance.now() - moved.current >= BY_HAND_MS) element.scrollTop = scrolled;
    }, SETTLE_MS);
    return () => clearTimeout(settled);
  }, [follow, scrolled]);

  useImperativeHandle(ref, () => ({
    show(line, character) {
      const element = box.current as HTMLElement;
      place(Math.max(0, rows.indexOf(line, character) * ROW_HEIGHT - size.height / 2));
      if (rows.columns) return;
      const x = gutter + character * size.character;
      if (x < element.scrollLeft + gutter || x > element.scrollLeft + size.width - 80)
        element.scrollLeft = Math.max(0, x - size.width / 2);
    },
    draw(dropped) {
      setDrawn((n) => n + 1);
      if (dropped && !follow) place(Math.max(0, (box.current?.scrollTop ?? 0) - dropped * ROW_HEIGHT));
    },
    top: () => (count ? rows.row(Math.min(count - 1, Math.floor(scrolled / ROW_HEIGHT))).line : store.first),
    focus: () => box.current?.focus(),
  }));

  const byHand = () => {
    moved.current = performance.now();
  };
  /** Go to the first or last line at once. The browser's own way there is an animation, which new lines can interrupt. */
  const onKeyDown = (event: React.KeyboardEvent) => {
    byHand();
    if (event.shiftKey || event.altKey || height <= size.height) return;
    if (event.key === "Home") {
      event.preventDefault();
      onFollow(false);
      place(0);
    } else if (event.key === "End") {
      event.preventDefault();
      onFollow(true);
    }
  };
  const onScroll = () => {
    const element = box.current as HTMLElement;
    const end = element.scrollHeight - element.clientHeight;
    if (follow && element.scrollTop < placed.current - 4 && element.scrollTop < end - 4) {
      // Growing content and layout changes also fire scroll events: only user input stops following.
      if (performance.now() - moved.current < BY_HAND_MS) onFollow(false);
      else element.scrollTop = end;
    } else if (!follow && element.scrollTop >= end - 2 && element.scrollTop > placed.current) onFollow(true);
    placed.current = element.scrollTop;
    setTop(element.scrollTop);
  };

  useEffect(() => {
    const element = box.current as HTMLElement;
    const marked = () => {
      const found = selectedText(element);
      if (!found) return setHeld(null);
      onFollow(false);
      setHeld([rows.indexOf(found[0].line), rows.indexOf(found[1].line, found[1].character)]);
    };
    const copied = (event: ClipboardEvent) => {
      const found = selectedText(element);
      if (!found && !everything.current) return;
      const text =
        everything.current || !found
          ? rows.texts().join("\n")
          : between(rows.texts(found[0].line, found[1].line + 1), ...found);
      event.clipboardData?.setData("text/plain", text);
      event.preventDefault();
    };
    const pressed = (event: KeyboardEvent) => {
      if (["Control", "Meta", "Shift"].includes(event.key) || event.key.toLowerCase() === "c") return;
      everything.current = (event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "a";
      if (!everything.current) return;
      event.preventDefault();
      getSelection()?.selectAllChildren(element);
    };
    const touched = () => {
      everything.current = false;
    };
    document.addEventListener("selectionchange", marked);
    element.addEventListener("copy", copied);
    element.addEventListener("keydown", pressed);
    element.addEventListener("pointerdown", touched);
    return () => {
      document.removeEventListener("selectionchange", marked);
      element.removeEventListener("copy", copied);
      element.removeEventListener("keydown", pressed);
      element.removeEventListener("pointerdown", touched);
    };
  }, [rows, onFollow]);

  let first = Math.max(0, Math.floor(scrolled / ROW_HEIGHT) - AROUND);
  let last = Math.min(count, Math.ceil((scrolled + size.height) / ROW_HEIGHT) + AROUND);
  if (held && Math.max(last, held[1] + 1) - Math.min(first, held[0]) <= HELD) {
    first = Math.max(0, Math.min(first, held[0]));
    last = Math.min(count, Math.max(last, held[1] + 1));
  }
  const shown = Array.from({ length: Math.max(0, last - first) }, (_, i) => rows.row(first + i));
  if (!rows.columns)
    for (const row of shown) widest.current = Math.max(widest.current, stripAnsi(store.text(row.line)).length);

  return (
    <section
      ref={box}
      aria-label={label}
      // biome-ignore lint/a11y/noNoninteractiveTabindex: it scrolls, so the keyboard must reach it
      tabIndex={0}
      onScroll={onScroll}
      onWheel={byHand}
      onTouchMove={byHand}
      onPointerDown={byHand}
      onPointerMove={(event) => event.buttons && byHand()}
      onKeyDown={onKeyDown}
      className="relative min-h-0 flex-1 overflow-auto bg-surface font-mono text-xs outline-offset-[-2px] [overflow-anchor:none]"
      style={{ lineHeight: `${ROW_HEIGHT}px` }}
    >
      <span ref={ruler} aria-hidden className="invisible absolute whitespace-pre select-none">
        {"0".repeat(100)}
      </span>
      <div
        style={{
          height,
          minWidth: "100%",
          width: rows.columns ? undefined : widest.current * size.character + gutter + 24,
        }}
      >
        <div className="flex" style={{ transform: `translateY(${first * ROW_HEIGHT}px)` }}>
          {gutter > 0 && (
            <pre
              aria-hidden
              className="sticky left-0 shrink-0 bg-surface pr-2 text-right text-faint tabular-nums select-none"
              style={{ width: gutter }}
            >
              {shown.map((row) => (row.from === 0 ? row.line + 1 : "")).join("\n")}
            </pre>
          )}
          <div>
            {shown.map((row, index) => (
              <LogRow
                // While following, every row changes: reusing elements by index is faster than creating new ones.
                key={follow ? index : `${row.line}:${row.from}`}
                line={row.line}
                from={row.from}
                to={row.to}
                text={store.text(row.line)}
                look={store.look(row.line)}
                stream={store.stream(row.line)}
                search={search}
                current={current?.line === row.line ? current.from : -1}
              />
            ))}
          </div>
        </div>
      </div>
    </section>
  );
}
