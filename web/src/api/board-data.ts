/** What is known of a board of which only a part was read: its arithmetic, without a browser. */
import type { Schemas } from "./client";
import type { Column, TaskCard } from "./types";

/** What is looked for. Everything that is given must hold. */
export interface BoardWish {
  projectId: string | null;
  q: string | null;
  agent: string | null;
  show: "needs-you" | "running" | "failed" | null;
}

export interface Count {
  /** Cards in the column. */
  total: number;
  /** Of those, what matches the filters: this many can be shown. */
  matching: number;
  /** Of all in the column, those in progress that have failed: nobody works on them. */
  failed: number;
}

export interface BoardData {
  /** Of each column the first ones, in no order. */
  items: TaskCard[];
  counts: Record<Column, Count>;
  /** Of tasks that cards wait for. */
  titles: Record<string, string>;
}

const NOTHING: Count = { total: 0, matching: 0, failed: 0 };

export const isFiltered = (wish: BoardWish): boolean => Boolean(wish.q || wish.agent || wish.show);

/** The same with what came: newer facts of a card take the place of older ones. */
export function merged(known: BoardData | undefined, pages: Schemas["BoardView"][]): BoardData {
  const items = new Map(known?.items.map((one) => [one.id, one]));
  const counts = {
    ...(known?.counts ?? {
      backlog: NOTHING,
      in_progress: NOTHING,
      in_review: NOTHING,
      done: NOTHING,
      cancelled: NOTHING,
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

export type Change = <T extends TaskCard>(cards: readonly T[]) => T[];

export function changed(known: BoardData, change: Change): BoardData {
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

/** Its place is taken by those behind it. */
export const without =
  (id: string): Change =>
  (cards) => {
    const gone = cards.find((one) => one.id === id);
    if (!gone) return [...cards];
    return cards
      .filter((one) => one.id !== id)
      .map((one) =>
        one.projectId === gone.projectId && one.status === gone.status && one.position > gone.position
          ? { ...one, position: one.position - 1 }
          : one,
      );
  };
