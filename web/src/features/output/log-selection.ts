/** The text selection in a log as positions in its lines, so that copying does not depend on which rows are rendered. */
export interface Place {
  line: number;
  character: number;
}

/** Return both ends of the selection in order; null if nothing is selected within `box`. */
export function selectedText(box: HTMLElement): [Place, Place] | null {
  const selection = getSelection();
  if (!selection || selection.isCollapsed || selection.rangeCount === 0) return null;
  const range = selection.getRangeAt(0);
  if (!box.contains(range.startContainer) && !box.contains(range.endContainer)) return null;
  const lines = [...box.querySelectorAll<HTMLElement>("[data-line]")].filter((row) => range.intersectsNode(row));
  const [first, last] = [lines[0], lines[lines.length - 1]];
  if (!first || !last) return null;
  const start = {
    line: Number(first.dataset.line),
    character: Number(first.dataset.from) + within(first, range, "start"),
  };
  const end = { line: Number(last.dataset.line), character: Number(last.dataset.from) + within(last, range, "end") };
  return [start, end];
}

/** Return how many characters of the row are before that end of the range. */
function within(row: HTMLElement, range: Range, which: "start" | "end"): number {
  const [node, offset] =
    which === "start" ? [range.startContainer, range.startOffset] : [range.endContainer, range.endOffset];
  const length = (row.textContent ?? "").replace(/\n$/, "").length;
  if (!row.contains(node)) return which === "start" ? 0 : length;
  const before = document.createRange();
  before.setStart(row, 0);
  before.setEnd(node, offset);
  return Math.min(length, before.toString().length);
}

/** Return the selected text. `lines` start with the line of `from`. */
export function between(lines: string[], from: Place, to: Place): string {
  const selected = [...lines];
  const last = selected.length - 1;
  if (last < 0) return "";
  selected[last] = (selected[last] as string).slice(0, to.character);
  selected[0] = (selected[0] as string).slice(from.character);
  return selected.join("\n");
}
