/** The visible rows: the lines of the chosen stream, broken into several rows if wrapping is on. */
import { stripAnsi } from "@/lib/ansi";
import type { LogStore, Stream } from "./log-store";

export type Filter = Stream | "both";

export interface Row {
  line: number;
  /** The range of characters of the displayed line in this row. */
  from: number;
  to: number;
}

export class LogRows {
  private readonly store: LogStore;
  readonly filter: Filter;
  /** Characters per row; null if lines are not wrapped. A multiple of 8, so that tab stops stay aligned. */
  readonly columns: number | null;
  /** The numbers of the lines shown. Empty if both streams are shown, because then every line is. */
  private lines: number[] = [];
  /** The cumulative number of rows up to and including each line, counted from the first line ever. */
  private ends: number[] = [];
  private before = 0; // Rows of dropped lines.
  private from: number; // The next line to process.
  private gone: number; // Lines before this one were dropped.

  constructor(store: LogStore, filter: Filter, columns: number | null) {
    this.store = store;
    this.filter = filter;
    this.columns = columns;
    this.from = store.first;
    this.gone = store.first;
  }

  /** Process changes of the store. Returns how many rows were dropped at the top since the last call. */
  sync(): number {
    const gone = this.forget();
    this.undo(Math.min(this.from, this.store.settled));
    if (this.filter !== "both" || this.columns) {
      for (let number = this.from; number < this.store.end; number++) {
        if (this.filter !== "both" && this.store.stream(number) !== this.filter) continue;
        if (this.filter !== "both") this.lines.push(number);
        if (this.columns) this.ends.push((this.ends[this.ends.length - 1] ?? this.before) + this.height(number));
      }
    }
    this.from = this.store.settled;
    return gone;
  }

  get length(): number {
    if (this.columns) return (this.ends[this.ends.length - 1] ?? this.before) - this.before;
    return this.shown;
  }

  private get shown(): number {
    return this.filter === "both" ? this.store.end - this.store.first : this.lines.length;
  }

  private line(index: number): number {
    return this.filter === "both" ? this.store.first + index : (this.lines[index] ?? this.store.end);
  }

  row(index: number): Row {
    if (!this.columns) return { line: this.line(index), from: 0, to: Number.POSITIVE_INFINITY };
    const found = after(this.ends, index + this.before);
    const segment = index + this.before - (found ? (this.ends[found - 1] as number) : this.before);
    const line = this.line(found);
    const cuts = breaks(stripAnsi(this.store.text(line)), this.columns);
    return { line, from: cuts[segment - 1] ?? 0, to: cuts[segment] ?? Number.POSITIVE_INFINITY };
  }

  /** Return the row that shows this character of the line; for a hidden line, the next row. */
  indexOf(line: number, character = 0): number {
    const place = this.filter === "both" ? Math.max(0, line - this.store.first) : after(this.lines, line - 1);
    if (!this.columns) return Math.min(place, Math.max(0, this.length - 1));
    const start = (place ? (this.ends[place - 1] ?? this.before) : this.before) - this.before;
    const segment = breaks(stripAnsi(this.store.text(line)), this.columns).filter((cut) => cut <= character).length;
    return Math.min(start + segment, Math.max(0, this.length - 1));
  }

  /** Return the lines shown, without colour codes. */
  texts(from = this.store.first, to = this.store.end): string[] {
    const shown: string[] = [];
    for (let number = Math.max(from, this.store.first); number < Math.min(to, this.store.end); number++) {
      if (this.filter === "both" || this.store.stream(number) === this.filter)
        shown.push(stripAnsi(this.store.text(number)));
    }
    return shown;
  }

  private height(number: number): number {
    return breaks(stripAnsi(this.store.text(number)), this.columns as number).length + 1;
  }

  /** Remove lines that the store has dropped. Returns the number of removed rows. */
  private forget(): number {
    const first = this.store.first;
    if (first === this.gone) return 0;
    const lines =
      this.filter === "both"
        ? Math.min(first - this.gone, this.ends.length || first - this.gone)
        : after(this.lines, first - 1);
    let rows = lines;
    if (this.columns) {
      const until = lines ? (this.ends[lines - 1] ?? this.before) : this.before;
      rows = until - this.before;
      this.before = until;
      this.ends = this.ends.slice(lines);
    }
    if (this.filter !== "both") this.lines = this.lines.slice(lines);
    this.gone = first;
    this.from = Math.max(this.from, first);
    return rows;
  }

  /** Discard everything processed from that line on. */
  private undo(number: number): void {
    const keep = this.filter === "both" ? Math.max(0, number - this.store.first) : after(this.lines, number - 1);
    if (this.filter !== "both" && this.lines.length > keep) this.lines.length = keep;
    if (this.columns && this.ends.length > keep) this.ends.length = keep;
    this.from = number;
  }
}

/** Return the index of the first greater value (binary search). */
function after(sorted: number[], value: number): number {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((sorted[middle] as number) > value) high = middle;
    else low = middle + 1;
  }
  return low;
}

// Characters that are one cell wide and one code unit long.
const NARROW = /^[\u0020-\u007e]*$/;

/** Return where to break a text so that no row is wider than `columns` cells. */
export function breaks(text: string, columns: number): number[] {
  const cuts: number[] = [];
  if (NARROW.test(text)) {
    for (let at = columns; at < text.length; at += columns) cuts.push(at);
    return cuts;
  }
  let cell = 0;
  let at = 0;
  for (const character of text) {
    const width = character === "\t" ? 8 - (cell % 8) : wide(character.codePointAt(0) as number);
    if (cell + width > columns && at > 0) {
      cuts.push(at);
      cell = character === "\t" ? 8 : width;
    } else {
      cell += width;
    }
    at += character.length;
  }
  return cuts;
}

/** Return the width of a character in cells. */
function wide(code: number): number {
  if (code < 0x300) return 1;
  if (code <= 0x36f || code === 0x200d || (code >= 0xfe00 && code <= 0xfe0f)) return 0;
  const east =
    code >= 0x1100 && (code <= 0x115f || (code >= 0x2e80 && code <= 0xa4cf) || (code >= 0xac00 && code <= 0xd7a3));
  return east ||
    (code >= 0xf900 && code <= 0xfaff) ||
    (code >= 0xfe30 && code <= 0xfe6f) ||
    (code >= 0xff00 && code <= 0xff60) ||
    code >= 0x1f300
    ? 2
    : 1;
}
