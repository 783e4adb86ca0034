/** Parse git's patch of one file into hunks and lines. Pure. Malformed input never throws; it only produces odd lines. */

export type Side = "old" | "new";

export interface Line {
  kind: "same" | "add" | "del";
  /** The text without its line ending ("\n" or "\r\n"). */
  text: string;
  /** The line number in the old and the new file; 0 where the line does not exist. */
  old: number;
  new: number;
  /** The line ends with "\r\n". */
  cr: boolean;
  /** The file ends with this line, without a newline. */
  noEnd: boolean;
  /** For a replaced or replacing line: the index of its counterpart in the hunk; else -1. */
  mate: number;
}

export interface Hunk {
  oldStart: number;
  oldCount: number;
  newStart: number;
  newCount: number;
  /** The context that git shows after the @@, such as a function name. */
  heading: string;
  lines: Line[];
}

export interface Patch {
  oldPath: string | null;
  newPath: string | null;
  oldMode: string | null;
  newMode: string | null;
  renamed: boolean;
  copied: boolean;
  /** Similarity of a rename or copy, in percent. */
  similarity: number | null;
  binary: boolean;
  hunks: Hunk[];
}

const HUNK = /^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@ ?(.*)$/;

/** Parse the patch of one file. Trailing text is ignored. A file whose type changed has two parts, which are joined. */
export function parsePatch(text: string): Patch {
  const patch: Patch = {
    oldPath: null,
    newPath: null,
    oldMode: null,
    newMode: null,
    renamed: false,
    copied: false,
    similarity: null,
    binary: false,
    hunks: [],
  };
  const lines = text.split("\n");
  if (lines.at(-1) === "") lines.pop();
  let at = 0;
  while (at < lines.length) {
    const line = lines[at] as string;
    const match = HUNK.exec(line.endsWith("\r") ? line.slice(0, -1) : line);
    if (match) {
      const hunk: Hunk = {
        oldStart: Number(match[1]),
        oldCount: match[2] === undefined ? 1 : Number(match[2]),
        newStart: Number(match[3]),
        newCount: match[4] === undefined ? 1 : Number(match[4]),
        heading: match[5] ?? "",
        lines: [],
      };
      at = readLines(lines, at + 1, hunk);
      pairUp(hunk.lines);
      patch.hunks.push(hunk);
    } else {
      readHeader(patch, line);
      at += 1;
    }
  }
  return patch;
}

function readHeader(patch: Patch, line: string): void {
  const rest = (start: string) => (line.startsWith(start) ? line.slice(start.length) : null);
  let value = rest("--- ");
  if (value !== null) patch.oldPath = withoutPrefix(value) ?? patch.oldPath;
  value = rest("+++ ");
  if (value !== null) patch.newPath = withoutPrefix(value) ?? patch.newPath;
  value = rest("old mode ") ?? rest("deleted file mode ");
  if (value !== null) patch.oldMode = value;
  value = rest("new mode ") ?? rest("new file mode ");
  if (value !== null) patch.newMode = value;
  value = rest("rename from ") ?? rest("copy from ");
  if (value !== null) patch.oldPath = unquotePath(value);
  value = rest("rename to ") ?? rest("copy to ");
  if (value !== null) patch.newPath = unquotePath(value);
  if (line.startsWith("rename ")) patch.renamed = true;
  if (line.startsWith("copy ")) patch.copied = true;
  value = rest("similarity index ");
  if (value !== null) patch.similarity = Number.parseInt(value, 10);
  if (line.startsWith("Binary files ") || line === "GIT binary patch") patch.binary = true;
}

/** Read as many lines as the hunk header counts, because a line of the file may look like a header. Returns the next index. */
function readLines(lines: string[], from: number, hunk: Hunk): number {
  let at = from;
  let old = hunk.oldStart;
  let made = hunk.newStart;
  const oldEnd = old + hunk.oldCount;
  const newEnd = made + hunk.newCount;
  while (at < lines.length) {
    const raw = lines[at] as string;
    const sign = raw[0];
    if (sign === "\\") {
      const last = hunk.lines.at(-1);
      if (last) last.noEnd = true;
      at += 1;
      continue;
    }
    if (old >= oldEnd && made >= newEnd) break;
    const kind = sign === "+" ? "add" : sign === "-" ? "del" : sign === " " || raw === "" ? "same" : null;
    if (kind === null) break;
    const cr = raw.endsWith("\r");
    hunk.lines.push({
      kind,
      text: raw.slice(1, cr ? -1 : undefined),
      old: kind === "add" ? 0 : old++,
      new: kind === "del" ? 0 : made++,
      cr,
      noEnd: false,
      mate: -1,
    });
    at += 1;
  }
  return at;
}

/** Pair removed lines with the added lines that follow them, in order. */
function pairUp(lines: Line[]): void {
  let at = 0;
  while (at < lines.length) {
    const dels = run(lines, at, "del");
    const adds = run(lines, at + dels, "add");
    for (let index = 0; index < Math.min(dels, adds); index += 1) {
      (lines[at + index] as Line).mate = at + dels + index;
      (lines[at + dels + index] as Line).mate = at + index;
    }
    at += Math.max(1, dels + adds);
  }
}

function run(lines: Line[], from: number, kind: Line["kind"]): number {
  let count = 0;
  while (lines[from + count]?.kind === kind) count += 1;
  return count;
}

function withoutPrefix(value: string): string | null {
  const path = unquotePath(value.endsWith("\t") ? value.slice(0, -1) : value);
  if (path === "/dev/null") return null;
  return /^[ab]\//.test(path) ? path.slice(2) : path;
}

const ESCAPES: Record<string, number> = { a: 7, b: 8, t: 9, n: 10, v: 11, f: 12, r: 13, '"': 34, "\\": 92 };

/** Undo git's quoting of a file name: C escapes, and bytes in octal. */
export function unquotePath(name: string): string {
  if (!name.startsWith('"') || !name.endsWith('"') || name.length < 2) return name;
  const bytes: number[] = [];
  const encoder = new TextEncoder();
  const inner = name.slice(1, -1);
  for (let at = 0; at < inner.length; at += 1) {
    if (inner[at] !== "\\") {
      const whole = String.fromCodePoint(inner.codePointAt(at) as number);
      bytes.push(...encoder.encode(whole));
      at += whole.length - 1;
      continue;
    }
    const octal = /^[0-3][0-7]{2}/.exec(inner.slice(at + 1, at + 4))?.[0];
    bytes.push(octal ? Number.parseInt(octal, 8) : (ESCAPES[inner[at + 1] ?? ""] ?? 92));
    at += octal ? 3 : 1;
  }
  return new TextDecoder().decode(new Uint8Array(bytes));
}
