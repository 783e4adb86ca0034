/**
 * What it costs to parse and show Markdown from agents and strangers, which could freeze the page. Pure, and linear in the length of the text.
 *
 * The cost is a sum over the lines. The parser opens and closes the lists and quotes of each line anew, continues those of the lines before
 * by indentation, and gives every row of a table as many cells as its widest one. Its time also grows with the square of the marks in one
 * paragraph (emphasis, brackets, backticks). Lines in code blocks are cheap. Where this scanner and the parser could disagree about what is
 * code, it counts the line.
 */

/** `cost` is about a second on a slow machine. Ordinary documents of 50,000 characters have less than a third of it. */
export const LIMITS = { length: 100_000, cost: 30_000, blockMarks: 1_000, depth: 30 };
const COSTS = {
  codeLine: 1,
  line: 4,
  container: 7,
  continued: 1,
  mark: 2,
  cell: 4,
  underline: 20,
  character: 1 / 50,
  squared: 1.5e-4,
};

const MARKS = /[*_~[\]!<>`&@\\]|:\/\/|http|www\./g;
const FENCE = /^(`{3,}|~{3,})/;
const CLOSING = /^ {0,3}(`{3,}|~{3,})[ \t]*$/;
const EMPTY = /^[ \t]*$/; // other kinds of spaces are text
/** The start of HTML that does not end at an empty line: the parser may see its end, and no code block, where this scanner sees one. */
const LASTING_HTML = /^ {0,3}<(?:[!?]|script|pre|style|textarea)/i;
const UNDERLINE = /^[ \t>]*(?:=+|-+)[ \t]*$/; // the parser looks for its heading in all that it has read
const DELIMITERS = /^\|(?: *:?-+:? *\|)+ *$/;
const BULLET = /^ {0,3}[-+*][ \t]+[^ \t]/; // ends a paragraph, always
/** The marks of lists and quotes at the start of a line, with the indentation before, between and after them. */
const CONTAINERS = /(?:[ \t]*(?:>|[-+*](?=[ \t]|$)|\d{1,9}[.)](?=[ \t]|$)))*[ \t]*/y;
const CONTAINER = /[>+*-]|\d[.)]/g;

/** Return about how long the text takes, or infinity if it is not to be formatted at all. */
export function markdownCost(text: string): number {
  if (text.length > LIMITS.length) return Number.POSITIVE_INFINITY;
  let cost = text.length * COSTS.character;
  let [blockMarks, columns, lastPipes, rows] = [0, 0, 0, 0]; // of the block, and of the table that it may be
  let [afterEmpty, knowsCode] = [true, true];
  let [characters, charged, bracket] = [0, 0, false]; // of the paragraph; its words are compared with its brackets
  let [isHeader, isTable] = [false, false];
  let open = 0; // at most so many lists and quotes continue in the next line
  let fence = "";
  for (const line of text.split(/\r\n?|\n/)) {
    if (fence) {
      const closing = CLOSING.exec(line)?.[1];
      if (closing?.startsWith(fence)) fence = "";
      else if (line.trimStart().startsWith(fence.slice(0, 3))) [fence, knowsCode] = ["", false];
      cost += COSTS.codeLine;
    } else if (EMPTY.test(line)) {
      cost += COSTS.codeLine + open * COSTS.continued;
      [afterEmpty, blockMarks, columns, lastPipes, rows] = [true, 0, 0, 0, 0];
      [characters, charged, bracket, isTable] = [0, 0, false, false];
    } else {
      knowsCode &&= !LASTING_HTML.test(line);
      fence = afterEmpty && knowsCode ? fenceOf(line) : "";
      if (fence) {
        open = 0;
        cost += COSTS.line;
        continue;
      }
      const { containers, indentation } = startOf(line);
      const continued = Math.min(open, Math.floor(indentation / 2)); // continuing a list takes two columns at least
      const depth = containers + continued;
      const checked = afterEmpty ? continued : open; // a line of a paragraph needs no marks
      open = afterEmpty ? depth : Math.max(open, depth);
      afterEmpty = false;
      if (rows === 0) isHeader = /^\|[^\\`]*$/.test(line) && line.trimEnd().endsWith("|");
      if (rows === 1) isTable = isHeader && DELIMITERS.test(line) && line.split("|").length - 1 === lastPipes;
      isTable &&= line.startsWith("|");
      if (isTable || BULLET.test(line)) [characters, charged, bracket] = [0, 0, false];
      characters += line.length;
      bracket ||= /[[\]]/.test(line);
      if (bracket) {
        cost += (characters ** 2 - charged ** 2) * COSTS.squared;
        charged = characters;
      }
      const marks = line.match(MARKS)?.length ?? 0;
      blockMarks += marks;
      const pipes = line.split("|").length - 1;
      // the first two rows of a table have the same number of cells
      const widest = Math.max(columns, Math.min(pipes, lastPipes) + 1);
      const cells = widest * (rows + 1) - columns * rows;
      [columns, lastPipes, rows] = [widest, pipes, rows + 1];
      if (blockMarks > LIMITS.blockMarks || depth > LIMITS.depth) return Number.POSITIVE_INFINITY;
      cost += COSTS.line + containers * COSTS.container + checked * COSTS.continued;
      cost +=
        (UNDERLINE.test(line) ? COSTS.underline : 0) + marks * COSTS.mark + (columns > 1 ? cells * COSTS.cell : 0);
    }
    if (cost > LIMITS.cost) return Number.POSITIVE_INFINITY;
  }
  return cost;
}

/** Return those of the texts that are beyond the cost of one page. The first ones come first. */
export function textsBeyondBudget(texts: string[]): Set<string> {
  const beyond = new Set<string>();
  let left = LIMITS.cost;
  for (const text of texts) {
    const cost = markdownCost(text);
    if (cost <= left) left -= cost;
    else if (cost < Number.POSITIVE_INFINITY) beyond.add(text);
  }
  return beyond;
}

/** Return the marks that start a code block, if the line does. */
function fenceOf(line: string): string {
  const fence = FENCE.exec(line)?.[1] ?? "";
  return line.includes("`", fence.length) ? "" : fence;
}

function startOf(line: string): { containers: number; indentation: number } {
  CONTAINERS.lastIndex = 0;
  const start = CONTAINERS.exec(line)?.[0] ?? "";
  const spaces = start.match(/[ \t]/g) ?? [];
  return {
    containers: start.match(CONTAINER)?.length ?? 0,
    indentation: spaces.reduce((sum, space) => sum + (space === "\t" ? 4 : 1), 0),
  };
}
