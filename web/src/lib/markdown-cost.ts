/**
 * Whether Markdown from agents and strangers can be parsed without freezing the page. Pure, and linear in the length of the text.
 *
 * The parser's time grows with the square of the marks in one paragraph (emphasis, brackets, backticks) and of the depth of lists and
 * quotes, and every row of a table gets as many cells as its widest one. Lines in code blocks are cheap. Where this scanner and the parser
 * could disagree about what is code, it counts the line.
 */

export const LIMITS = { length: 100_000, lines: 1_500, blockMarks: 1_000, marks: 5_000, depth: 30, cells: 20_000 };

const MARKS = /[*_~[\]!<>`&@\\]|:\/\/|http|www\./g;
const OPENING = /^(`{3,}|~{3,})[^`]*$/;
const CLOSING = /^ {0,3}(`{3,}|~{3,})[ \t]*$/;
const EMPTY = /^[ \t]*$/; // other kinds of spaces are text
/** The start of HTML that does not end at an empty line: the parser may see its end, and no code block, where this scanner sees one. */
const LASTING_HTML = /^ {0,3}<(?:[!?]|script|pre|style|textarea)/i;
/** The marks of lists and quotes at the start of a line. */
const CONTAINERS = /(?:[ \t]*(?:>|[-+*](?=[ \t])|\d{1,9}[.)](?=[ \t])))*/y;
const CONTAINER = />|[-+*](?=[ \t])|\d[.)]/g;

export function isCheapMarkdown(text: string): boolean {
  if (text.length > LIMITS.length) return false;
  const lines = text.split(/\r\n?|\n/);
  if (lines.length > LIMITS.lines) return false;
  let [marks, blockMarks, cells] = [0, 0, 0];
  let [columns, lastPipes, rows] = [0, 0, 0]; // of the table that the current block may be
  let [afterEmpty, knowsCode] = [true, true];
  let fence = "";
  for (const line of lines) {
    if (fence) {
      const closing = CLOSING.exec(line)?.[1];
      if (closing?.startsWith(fence)) fence = "";
      else if (line.trimStart().startsWith(fence.slice(0, 3))) [fence, knowsCode] = ["", false];
      continue;
    }
    if (EMPTY.test(line)) {
      cells += columns * rows;
      [afterEmpty, blockMarks, columns, lastPipes, rows] = [true, 0, 0, 0, 0];
      continue;
    }
    knowsCode &&= !LASTING_HTML.test(line);
    const opening = afterEmpty && knowsCode ? OPENING.exec(line) : null;
    if (opening) {
      fence = opening[1] as string;
      continue;
    }
    afterEmpty = false;
    const found = line.match(MARKS)?.length ?? 0;
    marks += found;
    blockMarks += found;
    const pipes = line.split("|").length - 1;
    // the first two rows of a table have the same number of cells
    columns = Math.max(columns, Math.min(pipes, lastPipes) + 1);
    [lastPipes, rows] = [pipes, rows + 1];
    if (marks > LIMITS.marks || blockMarks > LIMITS.blockMarks || depthOf(line) > LIMITS.depth) return false;
    if (cells + columns * rows > LIMITS.cells) return false;
  }
  return true;
}

function depthOf(line: string): number {
  CONTAINERS.lastIndex = 0;
  return CONTAINERS.exec(line)?.[0].match(CONTAINER)?.length ?? 0;
}
