/** Text that somebody wrote, taken apart into words and code. Pure. */

export type Piece = { kind: "text" | "inline" | "block"; text: string; language?: string | undefined };

const OPENING = /^ {0,3}(`{3,}|~{3,})[ \t]*([\w+#.-]*)[^`]*$/;

/** Fenced blocks are code, as far as they go: one that is not closed goes to the end. Everything else stays as it was written. */
export function splitCode(text: string): Piece[] {
  const pieces: Piece[] = [];
  let words: string[] = [];
  const flush = () => {
    if (words.some((line) => line.trim())) pieces.push(...splitInline(words.join("\n").replace(/^\n+|\n+$/g, "")));
    words = [];
  };
  const lines = text.split("\n");
  for (let at = 0; at < lines.length; at++) {
    const line = lines[at] as string;
    const opening = OPENING.exec(line);
    if (!opening) {
      words.push(line);
      continue;
    }
    flush();
    const fence = opening[1] as string;
    const end = lines.findIndex((one, index) => index > at && closes(one, fence));
    const stop = end < 0 ? lines.length : end;
    pieces.push({ kind: "block", text: lines.slice(at + 1, stop).join("\n"), language: opening[2] || undefined });
    at = stop;
  }
  flush();
  return pieces;
}

/** Without the marks of code, for where there is room for a line or two. */
export function plainText(text: string): string {
  return splitCode(text)
    .map((piece) => (piece.kind === "block" ? `\n${piece.text}\n` : piece.text))
    .join("");
}

function closes(line: string, fence: string): boolean {
  const mark = line.trim();
  return mark.length >= fence.length && [...mark].every((one) => one === fence[0]);
}

/** `code` in a line; a backtick without its other half is a backtick. */
function splitInline(text: string): Piece[] {
  const pieces: Piece[] = [];
  let last = 0;
  for (const match of text.matchAll(/(?<!`)(`{1,2})(?!`)([^\n]+?)(?<!`)\1(?!`)/g)) {
    if (match.index > last) pieces.push({ kind: "text", text: text.slice(last, match.index) });
    pieces.push({ kind: "inline", text: match[2] as string });
    last = match.index + match[0].length;
  }
  if (last < text.length) pieces.push({ kind: "text", text: text.slice(last) });
  return pieces;
}
