/** Flatten a diff into a list of rows for the virtual list. Pure. */
import type { FileDiff } from "@/api/types";
import type { Comment, Place } from "@/features/conversation/comments";
import { hasHidden } from "@/lib/hidden-characters";
import { type Hunk, type Line, type Patch, parsePatch } from "@/model/patch";

/** What is shown above the lines of a file or in place of them. */
export type Note = "hidden" | "binary" | "truncated" | "unpatched" | "empty";

export type Row =
  | { kind: "file"; key: string; file: number }
  | { kind: "note"; key: string; file: number; note: Note }
  | { kind: "hunk"; key: string; file: number; hunk: Hunk }
  | { kind: "line"; key: string; file: number; hunk: Hunk; at: number }
  /** `left` and `right` are line indexes in the hunk; -1 means nothing on that side. */
  | { kind: "pair"; key: string; file: number; hunk: Hunk; left: number; right: number }
  /** `loose`: its lines are no longer in the diff. */
  | { kind: "comment"; key: string; file: number; comment: Comment; loose: boolean }
  | { kind: "draft"; key: string; file: number };

export interface Shape {
  split: boolean;
  folded: ReadonlySet<string>;
  comments: Comment[];
  draft: Place | null;
}

const parsedPatches = new WeakMap<FileDiff, Patch>();

/** Return the parsed patch of a file. Parsed once per response. */
export function patchOf(file: FileDiff): Patch {
  let patch = parsedPatches.get(file);
  if (!patch) {
    patch = parsePatch(file.patch ?? "");
    parsedPatches.set(file, patch);
  }
  return patch;
}

const hiddenFound = new WeakMap<FileDiff, boolean>();

/** Return whether a file's changes or its name contain hidden characters. Searched once per response. */
function containsHidden(file: FileDiff): boolean {
  let found = hiddenFound.get(file);
  if (found === undefined) {
    found = [file.path, file.oldPath, file.patch].some((text) => hasHidden(text ?? ""));
    hiddenFound.set(file, found);
  }
  return found;
}

export function rowsOf(files: FileDiff[], shape: Shape): Row[] {
  const rows: Row[] = [];
  const byPath = groupLines(shape.comments);
  files.forEach((file, index) => {
    rows.push({ kind: "file", key: file.path, file: index });
    if (containsHidden(file)) rows.push({ kind: "note", key: `${file.path}:hidden`, file: index, note: "hidden" });
    if (shape.folded.has(file.path)) return;
    const here = new Places(byPath.get(file.path) ?? [], shape.draft?.path === file.path ? shape.draft : null, index);
    const from = rows.length;
    const patch = patchOf(file);
    const note = noteOf(file, patch);
    if (note) rows.push({ kind: "note", key: `${file.path}:note`, file: index, note });
    patch.hunks.forEach((hunk, number) => {
      const key = `${file.path}:${number}`;
      rows.push({ kind: "hunk", key, file: index, hunk });
      if (shape.split) pairs(hunk, key, index, rows, here);
      else lines(hunk, key, index, rows, here);
    });
    const left = here.left();
    if (left.length) rows.splice(from, 0, ...left);
  });
  return rows;
}

function groupLines(comments: Comment[]): Map<string, Comment[]> {
  const commentsByPath = new Map<string, Comment[]>();
  for (const comment of comments)
    commentsByPath.set(comment.path, [...(commentsByPath.get(comment.path) ?? []), comment]);
  return commentsByPath;
}

function noteOf(file: FileDiff, patch: Patch) {
  if (file.binary || patch.binary) return "binary";
  if (file.truncated) return "truncated";
  if (file.patch === null) return "unpatched";
  if (patch.hunks.length) return null;
  if (file.change === "added" || file.change === "deleted") return "empty";
  return file.change === "renamed" || file.change === "copied" || file.oldMode !== file.newMode ? null : "empty";
}

function lines(hunk: Hunk, key: string, file: number, rows: Row[], here: Places): void {
  hunk.lines.forEach((line, at) => {
    rows.push({ kind: "line", key: `${key}:${at}`, file, hunk, at });
    here.after(rows, line);
  });
}

/** Add the rows of a hunk in split view: removed lines on the left, their replacements on the right. */
function pairs(hunk: Hunk, key: string, file: number, rows: Row[], here: Places): void {
  const push = (left: number, right: number) => {
    rows.push({ kind: "pair", key: `${key}:${left}:${right}`, file, hunk, left, right });
    here.after(rows, hunk.lines[left], hunk.lines[right]);
  };
  let at = 0;
  while (at < hunk.lines.length) {
    const line = hunk.lines[at] as Line;
    if (line.kind === "same") {
      push(at, at);
      at += 1;
      continue;
    }
    let adds = at;
    while (hunk.lines[adds]?.kind === "del") adds += 1;
    let end = adds;
    while (hunk.lines[end]?.kind === "add") end += 1;
    for (let step = 0; step < Math.max(adds - at, end - adds); step += 1) {
      push(at + step < adds ? at + step : -1, adds + step < end ? adds + step : -1);
    }
    at = end;
  }
}

/** The comments and the draft of one file, placed below their lines. */
class Places {
  private readonly waiting = new Map<string, Row[]>();

  constructor(comments: Comment[], draft: Place | null, file: number) {
    for (const comment of comments) {
      this.put(comment, { kind: "comment", key: `comment:${comment.id}`, file, comment, loose: false });
    }
    if (draft) this.put(draft, { kind: "draft", key: "draft", file });
  }

  private put(place: Place, row: Row): void {
    const key = `${place.side}:${place.to}`;
    this.waiting.set(key, [...(this.waiting.get(key) ?? []), row]);
  }

  after(rows: Row[], ...shown: (Line | undefined)[]): void {
    if (!this.waiting.size) return;
    const keys = shown.flatMap((line) => (line ? [line.old && `old:${line.old}`, line.new && `new:${line.new}`] : []));
    for (const key of new Set(keys)) {
      const found = key ? this.waiting.get(key) : undefined;
      if (!found || !key) continue;
      rows.push(...found);
      this.waiting.delete(key);
    }
  }

  /** Return the rows whose lines were not found. */
  left(): Row[] {
    return [...this.waiting.values()].flat().map((row) => (row.kind === "comment" ? { ...row, loose: true } : row));
  }
}
