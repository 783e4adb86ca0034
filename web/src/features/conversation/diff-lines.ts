/** A line diff of what a tool call changed in a file. Pure. Very large differences are shown as all removed, then all added. */

export interface DiffLine {
  kind: "same" | "add" | "del" | "gap";
  text: string;
}

const AROUND = 3;
const LARGEST = 1_000_000;

/** Return the changed lines with three lines of context; each skipped stretch is one line of kind `gap`. */
export function diffLines(before: string | null, after: string): DiffLine[] {
  const old = before ? split(before) : [];
  const now = split(after);
  let start = 0;
  while (start < old.length && start < now.length && old[start] === now[start]) start += 1;
  let end = 0;
  while (
    end < old.length - start &&
    end < now.length - start &&
    old[old.length - 1 - end] === now[now.length - 1 - end]
  )
    end += 1;
  const middle = between(old.slice(start, old.length - end), now.slice(start, now.length - end));
  const same = (lines: string[]): DiffLine[] => lines.map((text) => ({ kind: "same", text }));
  return foldUnchanged([...same(old.slice(0, start)), ...middle, ...same(old.slice(old.length - end))]);
}

function split(text: string): string[] {
  const lines = text.split("\n");
  if (lines[lines.length - 1] === "") lines.pop();
  return lines;
}

function between(old: string[], now: string[]): DiffLine[] {
  const all: DiffLine[] = [];
  if (old.length * now.length > LARGEST) {
    for (const text of old) all.push({ kind: "del", text });
    for (const text of now) all.push({ kind: "add", text });
    return all;
  }
  const width = now.length + 1;
  const common = new Uint32Array((old.length + 1) * width);
  const at = (row: number, column: number) => common[row * width + column] as number;
  for (let row = old.length - 1; row >= 0; row -= 1)
    for (let column = now.length - 1; column >= 0; column -= 1)
      common[row * width + column] =
        old[row] === now[column] ? at(row + 1, column + 1) + 1 : Math.max(at(row + 1, column), at(row, column + 1));
  let row = 0;
  let column = 0;
  while (row < old.length || column < now.length) {
    if (row < old.length && column < now.length && old[row] === now[column]) {
      all.push({ kind: "same", text: old[row] as string });
      row += 1;
      column += 1;
    } else if (row < old.length && (column >= now.length || at(row + 1, column) >= at(row, column + 1))) {
      all.push({ kind: "del", text: old[row++] as string });
    } else {
      all.push({ kind: "add", text: now[column++] as string });
    }
  }
  return all;
}

function foldUnchanged(lines: DiffLine[]): DiffLine[] {
  const near = new Uint8Array(lines.length);
  lines.forEach((line, index) => {
    if (line.kind === "same") return;
    for (let at = Math.max(0, index - AROUND); at <= Math.min(lines.length - 1, index + AROUND); at += 1) near[at] = 1;
  });
  const shown: DiffLine[] = [];
  let hidden = 0;
  lines.forEach((line, index) => {
    if (near[index]) {
      if (hidden) shown.push({ kind: "gap", text: String(hidden) });
      hidden = 0;
      shown.push(line);
    } else hidden += 1;
  });
  if (hidden) shown.push({ kind: "gap", text: String(hidden) });
  return shown;
}

export function countChanges(lines: readonly DiffLine[]): { added: number; removed: number } {
  return {
    added: lines.filter((line) => line.kind === "add").length,
    removed: lines.filter((line) => line.kind === "del").length,
  };
}
