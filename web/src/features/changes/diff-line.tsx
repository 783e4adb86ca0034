/** The code lines of a diff, in unified or split view. */
import clsx from "clsx";
import { type MouseEvent, memo } from "react";
import { anchorOf } from "@/features/conversation/comments";
import type { Token } from "@/lib/highlight";
import { isCoarse } from "@/lib/pointer";
import type { Hunk, Line, Side } from "@/model/patch";
import { VisibleText } from "@/ui/visible-text";
import { changedWords, markWords, type Span } from "./word-diff";

export type OnGutter = (side: Side, number: number, extend: boolean) => void;

const TINTS: Record<Line["kind"], string> = { same: "", add: "bg-add", del: "bg-del" };
const STRONG: Record<Line["kind"], string> = { same: "", add: "bg-add-strong", del: "bg-del-strong" };
const SIGNS: Record<Line["kind"], string> = { same: " ", add: "+", del: "−" };
const CODE = "min-w-0 flex-1 pr-2 whitespace-pre-wrap [overflow-wrap:anywhere] [tab-size:4]";

/** Inline SVG: every line has this icon, and an icon from the library consists of several components. */
const PLUS = (
  <svg viewBox="0 0 24 24" className="size-3 stroke-current stroke-2" strokeLinecap="round" aria-hidden="true">
    <path d="M5 12h14M12 5v14" />
  </svg>
);

const spans = new WeakMap<Line, Span[]>();

/** Return the changed words of a line that replaced another. */
function emphasis(hunk: Hunk, line: Line): Span[] {
  const counterpart = line.counterpart < 0 ? undefined : hunk.lines[line.counterpart];
  if (!counterpart) return [];
  let found = spans.get(line);
  if (!found) {
    const [old, added] = line.kind === "del" ? [line, counterpart] : [counterpart, line];
    const words = changedWords(old.text, added.text);
    spans.set(old, words?.old ?? []);
    spans.set(added, words?.new ?? []);
    found = spans.get(line) ?? [];
  }
  return found;
}

function Text({ hunk, line, tokens }: { hunk: Hunk; line: Line; tokens: Token[] | undefined }) {
  const plain: Token[] = [["", line.text]];
  const pieces = markWords(tokens?.length ? tokens : plain, emphasis(hunk, line));
  const counterpart = line.counterpart < 0 ? undefined : hunk.lines[line.counterpart];
  return (
    <>
      {pieces.map(([kind, text, changed], index) => (
        <span
          key={index}
          className={clsx(kind && `hl-${kind}`, changed && STRONG[line.kind], changed && "rounded-[2px]")}
        >
          <VisibleText text={text} />
        </span>
      ))}
      {counterpart && counterpart.crlf !== line.crlf && (
        <Mark text={line.crlf ? "CRLF" : "LF"} title={`The line ending is now ${line.crlf ? "CRLF" : "LF"}`} />
      )}
      {line.noNewline && <Mark text="no newline" title="No newline at end of file" />}
    </>
  );
}

function Mark({ text, title }: { text: string; title: string }) {
  return (
    <span
      title={title}
      className="ml-2 rounded border border-line-strong px-1 font-sans text-2xs text-faint select-none"
    >
      {text}
    </span>
  );
}

/** The number of a line; with `onGutter` it is the button for commenting on it. */
function Gutter({
  line,
  number,
  onGutter,
  both = false,
}: {
  line: Line;
  number: number;
  onGutter?: OnGutter | undefined;
  both?: boolean;
}) {
  const look = clsx(
    "relative flex shrink-0 select-none font-mono text-2xs leading-5 text-faint tabular-nums",
    both ? "w-[4.5rem] @max-lg:w-10" : "w-11",
    onGutter && "pointer-coarse:!w-16",
  );
  // Rendered by CSS, so that numbers are not part of copied text or of the button's accessible name.
  const drawn = "pr-1.5 text-right before:content-[attr(data-number)]";
  const numbers = both ? (
    <>
      <span data-number={line.old || ""} className={clsx(drawn, "w-1/2 @max-lg:hidden")} />
      <span data-number={line.new || ""} className={clsx(drawn, "w-1/2 @max-lg:hidden")} />
      <span data-number={number} className={clsx(drawn, "hidden w-full @max-lg:block")} />
    </>
  ) : (
    <span data-number={number || ""} className={clsx(drawn, "w-full")} />
  );
  if (!onGutter) return <span className={look}>{numbers}</span>;
  const anchor = anchorOf(line);
  return (
    <button
      type="button"
      tabIndex={-1}
      aria-label={`Comment on ${anchor.side === "old" ? "old " : ""}line ${anchor.number}`}
      className={clsx(look, "group/gutter hover:text-text")}
      onClick={(event: MouseEvent) => onGutter(anchor.side, anchor.number, event.shiftKey)}
    >
      {numbers}
      <span className="absolute top-0.5 left-0.5 hidden size-4 place-items-center rounded bg-accent text-on-accent group-hover/line:grid group-focus-visible/gutter:grid pointer-coarse:grid pointer-coarse:size-5 pointer-coarse:bg-accent-soft pointer-coarse:text-accent">
        {PLUS}
      </span>
    </button>
  );
}

/** On touch screens, a tap anywhere on the line opens a comment; otherwise the line number is the button. */
function tapped(line: Line, onGutter: OnGutter | undefined) {
  if (!onGutter) return undefined;
  return (event: MouseEvent) => {
    if (!isCoarse() || !getSelection()?.isCollapsed || (event.target as Element).closest("button")) return;
    const { side, number } = anchorOf(line);
    onGutter(side, number, false);
  };
}

export const UnifiedLine = memo(function UnifiedLine({
  hunk,
  at,
  tokens,
  chosen,
  onGutter,
}: {
  hunk: Hunk;
  at: number;
  tokens: Token[] | undefined;
  chosen: boolean;
  onGutter?: OnGutter | undefined;
}) {
  const line = hunk.lines[at] as Line;
  return (
    // biome-ignore lint/a11y/noStaticElementInteractions: the line's number is a button that does the same
    // biome-ignore lint/a11y/useKeyWithClickEvents: the same
    <div
      onClick={tapped(line, onGutter)}
      className={clsx(
        "group/line flex min-h-5 font-mono text-xs leading-5 pointer-coarse:min-h-6",
        TINTS[line.kind],
        chosen && "shadow-[inset_3px_0_var(--accent)]",
      )}
    >
      <Gutter line={line} number={line.new || line.old} onGutter={onGutter} both />
      <span className="w-4 shrink-0 text-center text-faint select-none">{SIGNS[line.kind]}</span>
      <code className={CODE}>
        <Text hunk={hunk} line={line} tokens={tokens} />
      </code>
    </div>
  );
});

export interface Half {
  at: number;
  tokens: Token[] | undefined;
  chosen: boolean;
}

export const SplitLine = memo(function SplitLine({
  hunk,
  left,
  right,
  onGutter,
}: {
  hunk: Hunk;
  left: Half;
  right: Half;
  onGutter?: OnGutter | undefined;
}) {
  return (
    <div className="grid min-h-5 grid-cols-2 font-mono text-xs leading-5 pointer-coarse:min-h-6">
      <SplitHalf hunk={hunk} half={left} side="old" onGutter={onGutter} />
      <SplitHalf hunk={hunk} half={right} side="new" onGutter={onGutter} />
    </div>
  );
}, sameSplit);

type SplitProps = { hunk: Hunk; left: Half; right: Half; onGutter?: OnGutter | undefined };

function sameSplit(a: SplitProps, b: SplitProps): boolean {
  const same = (x: Half, y: Half) => x.at === y.at && x.tokens === y.tokens && x.chosen === y.chosen;
  return a.hunk === b.hunk && a.onGutter === b.onGutter && same(a.left, b.left) && same(a.right, b.right);
}

function SplitHalf({
  hunk,
  half,
  side,
  onGutter,
}: {
  hunk: Hunk;
  half: Half;
  side: Side;
  onGutter?: OnGutter | undefined;
}) {
  const line = hunk.lines[half.at];
  const edge = side === "new" && "border-l";
  if (!line) return <div className={clsx("bg-sunken/60", edge)} />;
  return (
    // biome-ignore lint/a11y/noStaticElementInteractions: the line's number is a button that does the same
    // biome-ignore lint/a11y/useKeyWithClickEvents: the same
    <div
      onClick={tapped(line, onGutter)}
      className={clsx(
        "group/line flex min-w-0",
        edge,
        TINTS[line.kind],
        half.chosen && "shadow-[inset_3px_0_var(--accent)]",
      )}
    >
      <Gutter line={line} number={line[side]} onGutter={onGutter} />
      <span className="w-4 shrink-0 text-center text-faint select-none">{SIGNS[line.kind]}</span>
      <code className={CODE}>
        <Text hunk={hunk} line={line} tokens={half.tokens} />
      </code>
    </div>
  );
}
