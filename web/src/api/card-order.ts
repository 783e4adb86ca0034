/** Compute the order of cards and the effect of moves. Pure. A place is an index within one project's column, from 0. */
import type { Column, TaskCard } from "@/api/types";

export const COLUMN_ORDER: readonly Column[] = ["backlog", "in_progress", "in_review", "done", "cancelled"];

/** The moves that the UI offers. The platform decides whether a move is allowed. */
export const TARGET_COLUMNS: Record<Column, readonly Column[]> = {
  backlog: ["in_progress", "done", "cancelled"],
  in_progress: ["backlog", "cancelled"],
  in_review: ["in_progress", "done", "cancelled"],
  done: ["backlog"],
  cancelled: ["backlog"],
};

export type Columns = Record<Column, TaskCard[]>;

function comparePlaces(one: TaskCard, other: TaskCard): number {
  return (
    one.position - other.position || (one.projectId < other.projectId ? -1 : one.projectId > other.projectId ? 1 : 0)
  );
}

/** Return the sorted columns. With several projects, all first cards come first, then all second cards, and so on. */
export function columnsOf(tasks: readonly TaskCard[]): Columns {
  const columns: Columns = { backlog: [], in_progress: [], in_review: [], done: [], cancelled: [] };
  for (const task of tasks) columns[task.status].push(task);
  for (const column of COLUMN_ORDER) columns[column].sort(comparePlaces);
  return columns;
}

/** Return the place of another card of the same project, not counting `card`. */
function placeOf(taskCard: TaskCard, card: TaskCard): number {
  return taskCard.position - (taskCard.status === card.status && taskCard.position > card.position ? 1 : 0);
}

/** Return the place after the last loaded card of a column, not counting `card`. */
function endOf(column: readonly TaskCard[], card: TaskCard): number {
  const own = column.filter((candidate) => candidate.projectId === card.projectId && candidate.id !== card.id);
  return Math.max(0, ...own.map((sibling) => placeOf(sibling, card) + 1));
}

/**
 * Return the cards after a move: the moved card and its neighbours in both columns have their new places. `at` null means where the
 * platform puts new cards. Moving the card back undoes it.
 */
export function moveCard<T extends TaskCard>(tasks: readonly T[], id: string, to: Column, at: number | null): T[] {
  const card = tasks.find((task) => task.id === id);
  if (!card) return [...tasks];
  const end = endOf(
    tasks.filter((task) => task.status === to),
    card,
  );
  const place = Math.min(at ?? (to === "done" || to === "cancelled" ? 0 : end), end);
  return tasks.map((task) => {
    if (task.id === id) return { ...task, status: to, position: place };
    if (task.projectId !== card.projectId) return task;
    let position = task.position;
    if (task.status === card.status && position > card.position) position -= 1;
    if (task.status === to && position >= place) position += 1;
    return position === task.position ? task : { ...task, position };
  });
}

/** Return the index of the gap between stacked cards that is nearest to `y`; 0 is above the first card. */
export function gapAt(y: number, items: readonly { start: number; size: number }[]): number {
  let low = 0;
  let high = items.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    const item = items[middle] as { start: number; size: number };
    if (y < item.start + item.size / 2) high = middle;
    else low = middle + 1;
  }
  return low;
}

/**
 * Return the place in its project's column for a card dropped into gap `gap` of the shown cards. Because filters hide cards and cards of
 * other projects are in between, it follows the nearest card of its own project above, else precedes the nearest one below; null if none
 * is shown.
 */
export function placeInGap(shown: readonly TaskCard[], card: TaskCard, gap: number): number | null {
  for (let index = gap - 1; index >= 0; index--) {
    const above = shown[index] as TaskCard;
    if (above.projectId === card.projectId && above.id !== card.id) return placeOf(above, card) + 1;
  }
  for (let index = gap; index < shown.length; index++) {
    const below = shown[index] as TaskCard;
    if (below.projectId === card.projectId && below.id !== card.id) return placeOf(below, card);
  }
  return null;
}

/** Return the gap between the shown cards in which a card at that place will appear: where to draw the drop line. */
export function gapOf(shown: readonly TaskCard[], card: TaskCard, place: number | null, to: Column): number {
  const at = place ?? (to === "done" || to === "cancelled" ? 0 : endOf(shown, card));
  let gap = 0;
  shown.forEach((task, index) => {
    if (task.id === card.id) return;
    const earlier =
      task.projectId === card.projectId ? placeOf(task, card) < at : comparePlaces(task, { ...card, position: at }) < 0;
    if (earlier) gap = index + 1;
  });
  return gap;
}

/** Return the place one step up or down among the shown cards of its project; null at either end. */
export function stepPlace(shown: readonly TaskCard[], card: TaskCard, step: -1 | 1): number | null {
  const own = shown.filter((candidate) => candidate.projectId === card.projectId);
  const index = own.findIndex((candidate) => candidate.id === card.id);
  const other = own[index + step];
  if (index < 0 || !other) return null;
  return placeOf(other, card) + (step < 0 ? 0 : 1);
}
