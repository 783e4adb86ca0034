/** Keyboard navigation between cards. */

import { COLUMN_ORDER, type Columns } from "@/api/card-order";
import type { Column, TaskCard } from "@/api/types";

export interface CardPosition {
  column: Column;
  index: number;
}

/** Return the next card: up and down in a column, left and right to the next column with cards, at the same index. Null if there is none. */
export function findNextCard(
  key: string,
  columns: Columns,
  collapsed: readonly string[],
  task: TaskCard,
): CardPosition | null {
  const cards = columns[task.status];
  const index = cards.findIndex((card) => card.id === task.id);
  const last = cards.length - 1;
  if (index < 0) return null;
  switch (key) {
    case "ArrowUp":
      return index > 0 ? { column: task.status, index: index - 1 } : null;
    case "ArrowDown":
      return index < last ? { column: task.status, index: index + 1 } : null;
    case "Home":
      return { column: task.status, index: 0 };
    case "End":
      return { column: task.status, index: last };
    case "ArrowLeft":
    case "ArrowRight": {
      const step = key === "ArrowLeft" ? -1 : 1;
      for (let at = COLUMN_ORDER.indexOf(task.status) + step; COLUMN_ORDER[at]; at += step) {
        const column = COLUMN_ORDER[at] as Column;
        const count = columns[column].length;
        if (count && !collapsed.includes(column)) return { column, index: Math.min(index, count - 1) };
      }
      return null;
    }
    default:
      return null;
  }
}
