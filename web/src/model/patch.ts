/** Parse git's patch of one file into hunks and lines. Pure. Never throws: malformed input gives a wrong patch. */

export type Side = "old" | "new";

export interface Line {
  kind: "same" | "add" | "del";
  /** The text without its line ending ("\n" or "\r\n"). */
  text: string;
  /** The line number in the old and the new file; 0 where the line does not exist. */
  old: number;
  new: number;
  /** The line ends with "\r\n". */
  crlf: boolean;
  /** The file ends with this line, without a newline. */
  noNewline: boolean;
  /** For a replaced or replacing line: the index of its counterpart in the hunk; else -1. */
  counterpart: number;
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

/** Parse the patch of one file. Git describes a changed file type, such as a file that became a link, in two parts, which are joined. */
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
      pairChangedLines(hunk.lines);
      patch.hunks.push(hunk);
    } else {
      readHeader(patch, line);
      at += 1;
    }
  }
  return patch;
}

function readHeader(patch: Patch, line: string): void {
  const after = (start: string) => (line.startsWith(start) ? line.slice(start.length) : null);
  let value = after("--- ");
  if (value !== null) patch.oldPath = parsePath(value) ?? patch.oldPath;
  value = after("+++ ");
  if (value !== null) patch.newPath = parsePath(value) ?? patch.newPath;
  value = after("old mode ") ?? after("deleted file mode ");
  if (value !== null) patch.oldMode = value;
  value = after("new mode ") ?? after("new file mode ");
  if (value !== null) patch.newMode = value;
  value = after("rename from ") ?? after("copy from ");
  if (value !== null) patch.oldPath = unquotePath(value);
  value = after("rename to ") ?? after("copy to ");
  if (value !== null) patch.newPath = unquotePath(value);
  if (line.startsWith("rename ")) patch.renamed = true;
  if (line.startsWith("copy ")) patch.copied = true;
  value = after("similarity index ");
  if (value !== null) patch.similarity = Number.parseInt(value, 10);
  if (line.startsWith("Binary files ") || line === "GIT binary patch") patch.binary = true;
}

/** Read the lines of a hunk and return the index after them. Counts them, because a line of the file may look like a header. */
function readLines(lines: string[], from: number, hunk: Hunk): number {
  let at = from;
  let oldLine = hunk.oldStart;
  let newLine = hunk.newStart;
  const oldEnd = oldLine + hunk.oldCount;
  const newEnd = newLine + hunk.newCount;
  while (at < lines.length) {
    const raw = lines[at] as string;
    const sign = raw[0];
    if (sign === "\\") {
      const last = hunk.lines.at(-1);
      if (last) last.noNewline = true;
      at += 1;
      continue;
    }
    if (oldLine >= oldEnd && newLine >= newEnd) break;
    const kind = sign === "+" ? "add" : sign === "-" ? "del" : sign === " " || raw === "" ? "same" : null;
    if (kind === null) break;
    const crlf = raw.endsWith("\r");
    hunk.lines.push({
      kind,
      text: raw.slice(1, crlf ? -1 : undefined),
      old: kind === "add" ? 0 : oldLine++,
      new: kind === "del" ? 0 : newLine++,
      crlf,
      noNewline: false,
      counterpart: -1,
    });
    at += 1;
  }
  return at;
}

/** Pair removed lines with the added lines that follow them, in order. */
function pairChangedLines(lines: Line[]): void {
  let at = 0;
  while (at < lines.length) {
    const dels = countLines(lines, at, "del");
    const adds = countLines(lines, at + dels, "add");
    for (let index = 0; index < Math.min(dels, adds); index += 1) {
      (lines[at + index] as Line).counterpart = at + dels + index;
      (lines[at + dels + index] as Line).counterpart = at + index;
    }
    at += Math.max(1, dels + adds);
  }
}

/** Return how many lines of this kind follow one another from an index on. */
function countLines(lines: Line[], from: number, kind: Line["kind"]): number {
  let count = 0;
  while (lines[from + count]?.kind === kind) count += 1;
  return count;
}

/** Return the path in a `---` or `+++` line without its `a/` or `b/`; null for /dev/null. */
function parsePath(value: string): string | null {
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
