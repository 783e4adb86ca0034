/** Syntax highlighting of a diff, computed lazily for what is in view: blocks of lines of one side, each block once. */
import { useSyncExternalStore } from "react";
import { highlight, type Token } from "@/lib/highlight";
import type { Hunk, Side } from "@/model/patch";

const BLOCK = 300;
const LONGEST_LINE = 2000;

type Block = Map<number, Token[]> | "pending";
const blocksByHunk = new WeakMap<Hunk, Map<string, Block>>();
const listeners = new Set<() => void>();
const queue: (() => Promise<void>)[] = [];
let version = 0;
let busy = false;

/** Re-render when new highlighting is available. */
export function useColours(): number {
  return useSyncExternalStore(
    (notify) => {
      listeners.add(notify);
      return () => listeners.delete(notify);
    },
    () => version,
  );
}

/** Return the tokens of a line, or undefined if they are still being computed. Starts the computation if needed. */
export function coloursOf(hunk: Hunk, at: number, language: string | undefined): Token[] | undefined {
  const line = hunk.lines[at];
  if (!language || !line) return undefined;
  const side: Side = line.kind === "del" ? "old" : "new";
  const first = Math.floor(at / BLOCK) * BLOCK;
  const key = `${language}:${side}:${first}`;
  let blocks = blocksByHunk.get(hunk);
  if (!blocks) {
    blocks = new Map();
    blocksByHunk.set(hunk, blocks);
  }
  const block = blocks.get(key);
  if (block === undefined) {
    const own = blocks;
    own.set(key, "pending");
    queue.push(async () => {
      own.set(key, await highlightBlock(hunk, side, first, language));
    });
    void work();
    return undefined;
  }
  return block === "pending" ? undefined : block.get(at);
}

async function highlightBlock(hunk: Hunk, side: Side, first: number, language: string): Promise<Map<number, Token[]>> {
  const places: number[] = [];
  for (let at = first; at < Math.min(hunk.lines.length, first + BLOCK); at += 1) {
    const line = hunk.lines[at];
    if (line?.[side] && line.text.length <= LONGEST_LINE) places.push(at);
  }
  const text = places.map((at) => hunk.lines[at]?.text ?? "").join("\n");
  const lines = await highlight(text, language).catch(() => []);
  return new Map(places.map((at, index) => [at, lines[index] ?? []]));
}

/** Process one block at a time and yield to the event loop in between. */
async function work(): Promise<void> {
  if (busy) return;
  busy = true;
  for (let next = queue.pop(); next; next = queue.pop()) {
    await next();
    version += 1;
    for (const notify of listeners) notify();
    await new Promise((resume) => setTimeout(resume));
  }
  busy = false;
}
