/** Comments on lines of a diff: kept in this browser until they are sent together as the session's next prompt. */
import type { FileDiff } from "@/api/types";
import { languageOf } from "@/lib/highlight";
import { useStored } from "@/lib/stored";
import { useSame } from "@/lib/use-same";
import type { Line, Patch, Side } from "@/model/patch";

/** The position of a comment: lines `from` to `to` of the file before ("old") or after ("new") the change. */
export interface Place {
  path: string;
  side: Side;
  from: number;
  to: number;
}

export interface Comment extends Place {
  id: string;
  /** The lines as they were when the comment was written. */
  quote: string;
  text: string;
}

export interface CommentStore {
  comments: Comment[];
  add: (comment: Omit<Comment, "id">) => void;
  edit: (id: string, text: string) => void;
  remove: (id: string) => void;
  removeAll: (ids: readonly string[]) => void;
  clear: () => void;
}

export function useComments(sessionId: string): CommentStore {
  const [stored, set] = useStored<Comment[]>(`comments.${sessionId}`, []);
  const comments = useSame(stored);
  return {
    comments,
    add: (comment) => set([...comments, { ...comment, id: crypto.randomUUID() }]),
    edit: (id, text) => set(comments.map((comment) => (comment.id === id ? { ...comment, text } : comment))),
    remove: (id) => set(comments.filter((comment) => comment.id !== id)),
    removeAll: (ids) => ids.length && set(comments.filter((comment) => !ids.includes(comment.id))),
    clear: () => set([]),
  };
}

/** Return the side and number that identify a line: the old number for a deleted line, the new number for all others. */
export function anchorOf(line: Line): { side: Side; number: number } {
  return line.kind === "del" ? { side: "old", number: line.old } : { side: "new", number: line.new };
}

/** Return the text of the lines, as far as they are in the diff. */
export function quoteOf(patch: Patch | undefined, place: Place): string {
  const found: string[] = [];
  for (const hunk of patch?.hunks ?? []) {
    for (const line of hunk.lines) {
      const number = line[place.side];
      if (number >= place.from && number <= place.to && number > 0) found.push(line.text);
    }
  }
  return found.join("\n");
}

export function describePlace(place: Place): string {
  const lines = place.from === place.to ? `line ${place.from}` : `lines ${place.from}–${place.to}`;
  return place.side === "old" ? `${lines} (before the change)` : lines;
}

const QUOTED = 40;

/** Build the prompt for the agent: each comment with its file, lines and code, in the order of the files. */
export function promptOf(comments: Comment[], files: FileDiff[], note = ""): string {
  const place = new Map(files.map((file, index) => [file.path, index]));
  const ordered = [...comments].sort(
    (a, b) =>
      (place.get(a.path) ?? 1e9) - (place.get(b.path) ?? 1e9) || a.path.localeCompare(b.path) || a.from - b.from,
  );
  const parts = ordered.map((comment) => {
    const lines = comment.quote.split("\n");
    const quote = lines.length > QUOTED ? [...lines.slice(0, QUOTED), "…"].join("\n") : comment.quote;
    const fence = "`".repeat(Math.max(3, ...[...quote.matchAll(/`+/g)].map((run) => run[0].length + 1)));
    const code = quote ? `\n${fence}${languageOf(comment.path) ?? ""}\n${quote}\n${fence}` : "";
    const where = comment.from === comment.to ? `${comment.from}` : `${comment.from}-${comment.to}`;
    const before = comment.side === "old" ? " (as it was before your change)" : "";
    return `${comment.path}:${where}${before}${code}\n${comment.text.trim()}`;
  });
  const head =
    note.trim() ||
    (comments.length === 1 ? "A comment on your changes:" : `${comments.length} comments on your changes:`);
  return [head, ...parts].join("\n\n");
}
