/** The rows of a diff as a virtual list, so that a diff of any size scrolls smoothly. */
import { defaultRangeExtractor, type Range, useVirtualizer } from "@tanstack/react-virtual";
import {
  type KeyboardEvent,
  type ReactNode,
  type Ref,
  useCallback,
  useEffect,
  useImperativeHandle,
  useRef,
  useState,
} from "react";
import type { FileDiff } from "@/api/types";
import type { CommentStore, Place } from "@/features/conversation/comments";
import { languageOf } from "@/lib/highlight";
import { isCoarse } from "@/lib/pointer";
import type { Side } from "@/model/patch";
import { CommentEditor, CommentView } from "./comment-box";
import { type Cursor, isInPlace, moveCursor, placeOf } from "./cursor";
import { FileHead, FileNote, HunkHead } from "./diff-file";
import { type OnGutter, SplitLine, UnifiedLine } from "./diff-line";
import { coloursOf, useColours } from "./highlighting";
import type { Row } from "./rows";

export interface Draft extends Place {
  origin: number;
  text: string;
}

export interface ListHandle {
  toFile: (path: string) => void;
}

export interface ListProps {
  ref?: Ref<ListHandle>;
  files: FileDiff[];
  rows: Row[];
  folded: ReadonlySet<string>;
  onFold: (path: string, folded: boolean) => void;
  isViewed?: ((file: FileDiff) => boolean) | undefined;
  onViewed?: ((file: FileDiff, viewed: boolean) => void) | undefined;
  store?: CommentStore | undefined;
  draft: Draft | null;
  onDraft: (draft: Draft | null) => void;
  onSaved: (draft: Draft) => void;
  onLoad?: ((file: FileDiff) => void) | undefined;
  loading: ReadonlySet<string>;
  onCurrent: (path: string | undefined) => void;
  fileActions?: ((file: FileDiff) => ReactNode) | undefined;
  /** The approximate width in pixels. */
  width: number;
}

const ROW_PX = 20;
const FINGER_PX = 24;
const CHARACTER_PX = 7.3;

function heightOf(row: Row, width: number): number {
  if (row.kind === "file") return 36; // The exact height: a wrong estimate would move everything below.
  if (row.kind === "hunk") return 24;
  if (row.kind === "note") return 52;
  if (row.kind === "comment" || row.kind === "draft") return 120;
  const lines = row.hunk.lines;
  const longest =
    row.kind === "line"
      ? lines[row.at]?.text.length
      : Math.max(lines[row.left]?.text.length ?? 0, lines[row.right]?.text.length ?? 0);
  const room = Math.max(120, (row.kind === "pair" ? width / 2 : width) - 96);
  const height = ROW_PX * Math.max(1, Math.ceil(((longest ?? 0) * CHARACTER_PX) / room));
  return isCoarse() ? Math.max(FINGER_PX, height) : height;
}

export function DiffList(props: ListProps) {
  const { files, rows, folded, store, draft, onDraft, onCurrent, width } = props;
  useColours();
  const scroller = useRef<HTMLDivElement>(null);
  const [cursor, setCursor] = useState<Cursor | null>(null);
  const sticky = useRef(0);
  // Stable functions for the same rows: otherwise every row is measured again whenever one comes into view.
  const keyOf = useCallback((index: number) => rows[index]?.key ?? index, [rows]);
  const estimate = useCallback((index: number) => heightOf(rows[index] as Row, width), [rows, width]);
  const virtual = useVirtualizer({
    count: rows.length,
    getScrollElement: () => scroller.current,
    estimateSize: estimate,
    getItemKey: keyOf,
    overscan: 8,
    rangeExtractor: useCallback(
      (range: Range) => {
        let head = Math.min(range.startIndex, rows.length - 1);
        while (head > 0 && rows[head]?.kind !== "file") head -= 1;
        sticky.current = head;
        return [...new Set([head, ...defaultRangeExtractor(range)])].sort((a, b) => a - b);
      },
      [rows],
    ),
  });
  const items = virtual.getVirtualItems();
  const current = files[rows[sticky.current]?.file ?? -1]?.path;
  useEffect(() => onCurrent(current), [current, onCurrent]);

  const toFile = (path: string) => {
    const index = rows.findIndex((row) => row.kind === "file" && files[row.file]?.path === path);
    if (index >= 0) virtual.scrollToIndex(index, { align: "start" });
  };
  useImperativeHandle(props.ref, () => ({ toFile }));

  const chosen = draft ?? (cursor ? placeOf(cursor) : null);
  const latest = useRef({ draft, onDraft });
  latest.current = { draft, onDraft };
  const gutters = useGutters(latest);
  const handleKey = (event: KeyboardEvent) => {
    if (event.defaultPrevented || event.metaKey || event.ctrlKey || event.altKey || isTyping(event.target)) return;
    const moveLine = (by: 1 | -1) => {
      const target = moveCursor(rows, files, cursor, by, event.shiftKey, virtual.range?.startIndex ?? 0);
      if (!target) return;
      setCursor(target.cursor);
      virtual.scrollToIndex(Math.min(rows.length - 1, Math.max(0, target.index + (by > 0 ? 1 : -3))), {
        align: "auto",
      });
    };
    const at = files.findIndex((file) => file.path === (cursor?.path ?? current));
    const file = files[at];
    const moveFile = (by: number) => {
      const next = files[at + by];
      if (!next) return;
      setCursor(null);
      toFile(next.path);
    };
    const moves: Record<string, () => void> = {
      j: () => moveLine(1),
      k: () => moveLine(-1),
      n: () => moveFile(1),
      p: () => moveFile(-1),
      x: () => file && props.onFold(file.path, !folded.has(file.path)),
      v: () => file && props.onViewed?.(file, !props.isViewed?.(file)),
      c: () => cursor && store && onDraft({ ...placeOf(cursor), origin: cursor.origin, text: "" }),
      escape: () => setCursor(null),
    };
    const move = moves[event.key.toLowerCase()];
    if (!move) return;
    event.preventDefault();
    move();
  };

  const renderRow = (row: Row): ReactNode => {
    const file = files[row.file] as FileDiff;
    const onGutter = store ? gutters(file.path) : undefined;
    const tokens = (hunk: Parameters<typeof coloursOf>[0], at: number) => coloursOf(hunk, at, languageOf(file.path));
    switch (row.kind) {
      case "file":
        return (
          <FileHead
            file={file}
            folded={folded.has(file.path)}
            onFold={props.onFold}
            viewed={props.isViewed?.(file) ?? false}
            onViewed={props.onViewed}
            actions={props.fileActions}
          />
        );
      case "note":
        return (
          <FileNote
            note={row.note}
            file={file}
            loading={props.loading.has(file.path)}
            onLoad={props.onLoad && (() => props.onLoad?.(file))}
          />
        );
      case "hunk":
        return <HunkHead hunk={row.hunk} />;
      case "line": {
        const inside = isInPlace(chosen, file.path, row.hunk.lines[row.at]);
        return (
          <UnifiedLine
            hunk={row.hunk}
            at={row.at}
            tokens={tokens(row.hunk, row.at)}
            chosen={inside}
            onGutter={onGutter}
          />
        );
      }
      case "pair": {
        const half = (at: number, side: Side) => ({
          at,
          tokens: tokens(row.hunk, at),
          chosen: chosen?.side === side && isInPlace(chosen, file.path, row.hunk.lines[at]),
        });
        return (
          <SplitLine hunk={row.hunk} left={half(row.left, "old")} right={half(row.right, "new")} onGutter={onGutter} />
        );
      }
      case "comment":
        return (
          <CommentView
            comment={row.comment}
            loose={row.loose}
            onEdit={(text) => store?.edit(row.comment.id, text)}
            onRemove={() => store?.remove(row.comment.id)}
          />
        );
      case "draft":
        return (
          draft && (
            <CommentEditor
              place={draft}
              text={draft.text}
              onText={(text) => onDraft({ ...draft, text })}
              action="Add comment"
              onDone={() => draft.text.trim() && props.onSaved(draft)}
              onCancel={() => onDraft(null)}
            />
          )
        );
    }
  };

  return (
    <section
      ref={scroller}
      aria-label="Changed lines"
      // biome-ignore lint/a11y/noNoninteractiveTabindex: it scrolls, so the keyboard must reach it
      tabIndex={0}
      onKeyDown={handleKey}
      className="@container min-h-0 min-w-0 flex-1 overflow-y-auto bg-surface [overflow-anchor:none]"
    >
      <div className="relative w-full" style={{ height: virtual.getTotalSize() }}>
        {items.map((item) => {
          const row = rows[item.index];
          if (!row) return null;
          const pinned = item.index === sticky.current;
          return (
            <div
              key={item.key}
              data-index={item.index}
              ref={virtual.measureElement}
              className={pinned ? "sticky top-0 z-10" : "absolute top-0 left-0 w-full"}
              style={pinned ? undefined : { transform: `translateY(${item.start}px)` }}
            >
              {renderRow(row)}
            </div>
          );
        })}
      </div>
    </section>
  );
}

/** Return a stable callback for each file, so that memoized lines do not re-render. */
function useGutters(latest: {
  current: { draft: Draft | null; onDraft: (draft: Draft | null) => void };
}): (path: string) => OnGutter {
  const callbacks = useRef(new Map<string, OnGutter>());
  return (path) => {
    let gutter = callbacks.current.get(path);
    if (!gutter) {
      gutter = (side, number, extend) => {
        const { draft, onDraft } = latest.current;
        if (extend && draft?.path === path && draft.side === side) {
          onDraft({ ...draft, ...placeOf({ path, side, origin: draft.origin, head: number }) });
        } else onDraft({ path, side, from: number, to: number, origin: number, text: draft?.text ?? "" });
      };
      callbacks.current.set(path, gutter);
    }
    return gutter;
  };
}

function isTyping(target: EventTarget): boolean {
  return (
    target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName))
  );
}
