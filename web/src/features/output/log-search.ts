/** Search a log incrementally, in slices short enough for one frame, and keep up with appended lines. */
import { stripAnsi } from "@/lib/ansi";
import type { Filter } from "./log-rows";
import type { LogStore } from "./log-store";

export interface Match {
  line: number;
  from: number;
  to: number;
}

const MOST = 100_000;
const AT_ONCE = 500; // Lines between two checks of the clock.

export class LogSearch {
  private readonly store: LogStore;
  private readonly filter: Filter;
  private readonly pattern: RegExp;
  private found: Match[] = [];
  private from: number;
  readonly query: string;

  constructor(store: LogStore, filter: Filter, query: string, exact: boolean) {
    this.store = store;
    this.filter = filter;
    this.query = query;
    this.pattern = new RegExp(query.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), exact ? "g" : "gi");
    this.from = store.first;
  }

  get matches(): readonly Match[] {
    return this.found;
  }

  /** Whether the maximum number of matches was reached. */
  get full(): boolean {
    return this.found.length >= MOST;
  }

  /** Continue for about that long. Returns whether the search is complete. */
  sync(milliseconds: number, clock: () => number = () => performance.now()): boolean {
    const { first, end, settled } = this.store;
    this.forget(first);
    this.from = Math.max(this.from, first);
    const until = clock() + milliseconds;
    let at = this.from;
    while (at < end && !this.full) {
      const stop = Math.min(end, at + AT_ONCE);
      for (; at < stop; at++)
        if (this.filter === "both" || this.store.stream(at) === this.filter) this.found.push(...this.inLine(at));
      if (clock() >= until) break;
    }
    this.from = Math.min(at, settled);
    return at >= end || this.full;
  }

  inLine(line: number): Match[] {
    const matches: Match[] = [];
    for (const match of stripAnsi(this.store.text(line)).matchAll(this.pattern)) {
      matches.push({ line, from: match.index, to: match.index + match[0].length });
    }
    return matches;
  }

  /** Return the index in `matches` of the first match at or after that line; 0 if there is none. */
  findIndexFrom(line: number): number {
    return Math.max(
      0,
      this.found.findIndex((match) => match.line >= line),
    );
  }

  private forget(first: number): void {
    // Unfinished lines are searched again.
    while (this.found.length && (this.found[this.found.length - 1] as Match).line >= this.from) this.found.pop();
    if (this.found.length && (this.found[0] as Match).line < first)
      this.found = this.found.filter((match) => match.line >= first);
  }
}
