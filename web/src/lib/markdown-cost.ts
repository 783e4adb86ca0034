/**
 * Whether Markdown from agents and strangers can be parsed without freezing the page. Pure, and linear in the length of the text.
 *
 * The parser's time grows with the square of the marks in one paragraph (emphasis, brackets, backticks) and of the depth of lists and
 * quotes. Lines in code blocks are cheap. Where this scanner and the parser could disagree about what is code, it counts the line.
 */

export const LIMITS = { length: 100_000, lines: 1_500, blockMarks: 1_000, marks: 5_000, depth: 30 };

const MARKS = /[*_~[\]!<>`&@\\]|:\/\/|http|www\./g;
const OPENING = /^(`{3,}|~{3,})[^`]*$/;
/** The start of HTML that does not end at an empty line: the parser may see its end, and no code block, where this scanner sees one. */
const LASTING_HTML = /^ {0,3}<(?:[!?]|script|pre|style|textarea)/i;
/** The marks of lists and quotes at the start of a line. */
const CONTAINERS = /(?:[ \t]*(?:>|[-+*](?=[ \t])|\d{1,9}[.)](?=[ \t])))*/y;
const CONTAINER = />|[-+*](?=[ \t])|\d[.)]/g;

export function isCheapMarkdown(text: string): boolean {
  if (text.length > LIMITS.length) return false;
  const lines = text.split(/\r\n?|\n/);
  if (lines.length > LIMITS.lines) return false;
  let [marks, blockMarks] = [0, 0];
  let [afterEmpty, knowsCode] = [true, true];
  let fence = "";
  for (const line of lines) {
    if (fence) {
      if (line.trimStart().startsWith(fence)) fence = "";
      continue;
    }
    if (!line.trim()) {
      [afterEmpty, blockMarks] = [true, 0];
      continue;
    }
    knowsCode &&= !LASTING_HTML.test(line);
    const opening = afterEmpty && knowsCode ? OPENING.exec(line) : null;
    if (opening) {
      fence = (opening[1] as string).slice(0, 3);
      continue;
    }
    afterEmpty = false;
    const found = line.match(MARKS)?.length ?? 0;
    marks += found;
    blockMarks += found;
    if (marks > LIMITS.marks || blockMarks > LIMITS.blockMarks || depthOf(line) > LIMITS.depth) return false;
  }
  return true;
}

function depthOf(line: string): number {
  CONTAINERS.lastIndex = 0;
  return CONTAINERS.exec(line)?.[0].match(CONTAINER)?.length ?? 0;
}
