/** Find the changed words between a line and the line it replaced. Pure. */

/** Start and end offset in the text. */
export type Span = [from: number, to: number];

const LONGEST = 1000;
const MOST = 160;
const WORD = /[\p{L}\p{N}_]+|\s+|[^\p{L}\p{N}_\s]/gu;

/** Return the spans that are only in `old` and only in `revised`; null if the lines are equal, too different or too long. */
export function changedWords(old: string, revised: string): { old: Span[]; new: Span[] } | null {
  if (old.length > LONGEST || revised.length > LONGEST || old === revised) return null;
  const before = old.match(WORD) ?? [];
  const after = revised.match(WORD) ?? [];
  let head = 0;
  while (head < before.length && head < after.length && before[head] === after[head]) head += 1;
  let tail = 0;
  while (
    tail < before.length - head &&
    tail < after.length - head &&
    before[before.length - 1 - tail] === after[after.length - 1 - tail]
  )
    tail += 1;
  const left = before.slice(head, before.length - tail);
  const right = after.slice(head, after.length - tail);
  const [keepLeft, keepRight] =
    left.length > MOST || right.length > MOST ? [new Set<number>(), new Set<number>()] : common(left, right);
  const start = length(before.slice(0, head));
  const spans = { old: outside(left, keepLeft, start), new: outside(right, keepRight, start) };
  const changed = Math.max(size(spans.old), size(spans.new));
  return changed > 0.7 * Math.max(old.trim().length, revised.trim().length) ? null : spans;
}

/** Return the longest common subsequence of words, as indexes into each list. */
function common(left: string[], right: string[]): [Set<number>, Set<number>] {
  const width = right.length + 1;
  const best = new Uint16Array((left.length + 1) * width);
  for (let i = left.length - 1; i >= 0; i -= 1) {
    for (let j = right.length - 1; j >= 0; j -= 1) {
      best[i * width + j] =
        left[i] === right[j]
          ? (best[(i + 1) * width + j + 1] as number) + 1
          : Math.max(best[(i + 1) * width + j] as number, best[i * width + j + 1] as number);
    }
  }
  const inLeft = new Set<number>();
  const inRight = new Set<number>();
  let i = 0;
  let j = 0;
  while (i < left.length && j < right.length) {
    if (left[i] === right[j]) {
      inLeft.add(i++);
      inRight.add(j++);
    } else if ((best[(i + 1) * width + j] as number) >= (best[i * width + j + 1] as number)) i += 1;
    else j += 1;
  }
  return [inLeft, inRight];
}

/** Return the spans of the words not in `kept`; whitespace between two of them is included. */
function outside(words: string[], kept: Set<number>, start: number): Span[] {
  const spans: Span[] = [];
  let at = start;
  words.forEach((word, index) => {
    const last = spans.at(-1);
    const between =
      kept.has(index) && !word.trim() && last?.[1] === at && index + 1 < words.length && !kept.has(index + 1);
    if (!kept.has(index) || between) {
      if (last && last[1] === at) last[1] = at + word.length;
      else spans.push([at, at + word.length]);
    }
    at += word.length;
  });
  return spans;
}

function length(words: string[]): number {
  return words.reduce((sum, word) => sum + word.length, 0);
}

function size(spans: Span[]): number {
  return spans.reduce((sum, [from, to]) => sum + to - from, 0);
}

/** Split tokens at the edges of the spans; each piece says whether it is inside one. */
export function markWords<T extends [kind: string, text: string]>(
  tokens: T[],
  spans: Span[],
): [kind: string, text: string, changed: boolean][] {
  const pieces: [string, string, boolean][] = [];
  let at = 0;
  let next = 0;
  for (const [kind, text] of tokens) {
    let from = 0;
    while (from < text.length) {
      while (next < spans.length && (spans[next] as Span)[1] <= at) next += 1;
      const span = spans[next];
      const inside = span !== undefined && span[0] <= at;
      const edge = span === undefined ? Number.POSITIVE_INFINITY : inside ? span[1] : span[0];
      const take = Math.min(text.length - from, edge - at);
      pieces.push([kind, text.slice(from, from + take), inside]);
      from += take;
      at += take;
    }
  }
  return pieces;
}
