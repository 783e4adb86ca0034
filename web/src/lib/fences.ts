/** Split plain text into text and code. Pure. */

export type Piece = { kind: "text" | "inline" | "block"; text: string; language?: string | undefined };

const OPENING = /^ {0,3}(`{3,}|~{3,})[ \t]*([\w+#.-]*)[^`]*$/;

/** Split text into fenced blocks, inline code and plain text. A block that is not closed extends to the end. Plain text is not changed. */
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
    let stop = at + 1;
    while (stop < lines.length && !closes(lines[stop] as string, fence)) stop++;
    pieces.push({ kind: "block", text: lines.slice(at + 1, stop).join("\n"), language: opening[2] || undefined });
    at = stop;
  }
  flush();
  return pieces;
}

/** Return the text without fences and backticks, for previews of a line or two. */
export function plainText(text: string): string {
  return splitCode(text)
    .map((piece) => (piece.kind === "block" ? `\n${piece.text}\n` : piece.text))
    .join("");
}

function closes(line: string, fence: string): boolean {
  const mark = line.trim();
  return mark.length >= fence.length && [...mark].every((value) => value === fence[0]);
}

/** Find inline `code`; an unmatched backtick is plain text. */
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
