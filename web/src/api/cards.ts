/** The cache of cards: boards, which are loaded in part, and task lists, which are complete. */
import { type QueryClient, queryOptions } from "@tanstack/react-query";
import { type BoardData, type BoardWish, type Change, changed, merged } from "./board-data";
import { api, got, type Schemas } from "./client";
import type { Column, Task } from "./types";

const PAGE = 25;
const MORE = 50;
const MOST = 200;

function read(
  wish: BoardWish,
  page: { status?: Column; offset?: number; limit: number },
): Promise<Schemas["BoardView"]> {
  const query = {
    projectId: wish.projectId ?? undefined,
    q: wish.q?.slice(0, 200) ?? undefined,
    agent: wish.agent ?? undefined,
    show: wish.show ?? undefined,
    ...page,
  };
  return got(api.GET("/api/v1/board", { params: { query } }));
}

const loaded = (known: BoardData | undefined, column: Column): number =>
  known?.items.filter((one) => one.status === column).length ?? 0;

/** The first cards of each column. A refetch reads as many as were loaded before. */
export const board = (wish: BoardWish) =>
  queryOptions({
    queryKey: ["board", wish] as const,
    queryFn: async ({ client, queryKey }): Promise<BoardData> => {
      const first = await read(wish, { limit: PAGE });
      // read the cache only now: more cards may have been loaded during the request
      const before = client.getQueryData<BoardData>(queryKey);
      const rest = first.columns.flatMap(({ status, matching }) => {
        const pages: Promise<Schemas["BoardView"]>[] = [];
        const end = Math.min(loaded(before, status), matching);
        for (let offset = PAGE; offset < end; offset += MOST)
          pages.push(read(wish, { status, offset, limit: Math.min(end - offset, MOST) }));
        return pages;
      });
      return merged(undefined, [first, ...(await Promise.all(rest))]);
    },
    // keep the previous results while the user types
    placeholderData: (before, query) => (query?.queryKey[1].projectId === wish.projectId ? before : undefined),
  });

/** Load the next cards of a column. */
export async function readMore(client: QueryClient, wish: BoardWish, column: Column): Promise<void> {
  const key = board(wish).queryKey;
  const page = await read(wish, { status: column, offset: loaded(client.getQueryData(key), column), limit: MORE });
  client.setQueryData<BoardData>(key, (known) => known && merged(known, [page]));
}

/** Apply a change to all cached cards, and update the counts of boards. */
export function changeCards(client: QueryClient, change: Change): void {
  client.setQueriesData<Task[]>({ queryKey: ["tasks"] }, (known) => known && change(known));
  client.setQueriesData<BoardData>({ queryKey: ["board"] }, (known) => known && changed(known, change));
}
