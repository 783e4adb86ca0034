/** The loaded part of a board and its counts. Pure. */
import type { Schemas } from "./client";
import type { Column, TaskCard } from "./types";

/** Board filters. A card must match all that are set. */
export interface BoardFilters {
  projectId: string | null;
  q: string | null;
  agent: string | null;
  show: "needs-you" | "running" | "failed" | null;
}

export interface ColumnCount {
  /** Cards in the column. */
  total: number;
  /** Cards in the column that match the filters. */
  matching: number;
  /** Cards in progress that have failed, so that no agent works on them. */
  failed: number;
}

export interface BoardData {
  /** The first cards of each column, in no particular order. */
  items: TaskCard[];
  counts: Record<Column, ColumnCount>;
  /** Titles of the tasks that cards depend on, by id. */
  titles: Record<string, string>;
}

const EMPTY: ColumnCount = { total: 0, matching: 0, failed: 0 };

export const isFiltered = (filters: BoardFilters): boolean => Boolean(filters.q || filters.agent || filters.show);

/** Merge pages into the board. A newer version of a card replaces the older one. */
export function mergePages(known: BoardData | undefined, pages: Schemas["BoardView"][]): BoardData {
  const items = new Map(known?.items.map((card) => [card.id, card]));
  const counts = {
    ...(known?.counts ?? {
      backlog: EMPTY,
      in_progress: EMPTY,
      in_review: EMPTY,
      done: EMPTY,
      cancelled: EMPTY,
    }),
  };
  const titles = { ...known?.titles };
  for (const page of pages) {
    for (const column of page.columns) {
      counts[column.status] = { total: column.total, matching: column.matching, failed: column.failed };
      for (const card of column.items) items.set(card.id, card);
    }
    Object.assign(titles, page.titles);
  }
  return { items: [...items.values()], counts, titles };
}

export type CardChange = <T extends TaskCard>(cards: readonly T[]) => T[];

export function changeBoard(known: BoardData, change: CardChange): BoardData {
  const items = change(known.items);
  const counts = { ...known.counts };
  for (const [list, by] of [
    [known.items, -1],
    [items, 1],
  ] as const) {
    for (const { status, error } of list) {
      const { total, matching, failed } = counts[status];
      const fails = error && status === "in_progress" ? by : 0;
      counts[status] = { total: total + by, matching: matching + by, failed: failed + fails };
    }
  }
  return { ...known, items, counts };
}

/** Return a change that removes a card and moves the cards after it up. */
export const removeCard =
  (id: string): CardChange =>
  (cards) => {
    const gone = cards.find((card) => card.id === id);
    if (!gone) return [...cards];
    return cards
      .filter((card) => card.id !== id)
      .map((card) =>
        card.projectId === gone.projectId && card.status === gone.status && card.position > gone.position
          ? { ...card, position: card.position - 1 }
          : card,
      );
  };
