/** The cards of boards, which are loaded in part, and the cache of all cards. */
import { type QueryClient, queryOptions, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useCallback } from "react";
import { moveCard } from "@/api/card-order";
import { type BoardData, type BoardFilters, type CardChange, changeBoard, mergePages } from "../board-data";
import { api, type Schemas, unwrap } from "../client";
import { keys, MOVE_CARD } from "../keys";
import { invalidate } from "../refresh";
import type { Column, Task, TaskCard } from "../types";

const FIRST_PAGE = 25;
const NEXT_PAGE = 50;
const MAX_PAGE = 200;

function readPage(
  filters: BoardFilters,
  page: { status?: Column; offset?: number; limit: number },
): Promise<Schemas["BoardView"]> {
  const query = {
    projectId: filters.projectId ?? undefined,
    q: filters.q?.slice(0, 200) ?? undefined,
    agent: filters.agent ?? undefined,
    show: filters.show ?? undefined,
    ...page,
  };
  return unwrap(api.GET("/api/v1/board", { params: { query } }));
}

const countLoaded = (board: BoardData | undefined, column: Column): number =>
  board?.items.filter((card) => card.status === column).length ?? 0;

const boardQuery = (filters: BoardFilters) =>
  queryOptions({
    queryKey: keys.board(filters),
    queryFn: async ({ client, queryKey }): Promise<BoardData> => {
      const first = await readPage(filters, { limit: FIRST_PAGE });
      // read the cache only now: more cards may have been loaded during the request
      const before = client.getQueryData<BoardData>(queryKey);
      const rest = first.columns.flatMap(({ status, matching }) => {
        const pages: Promise<Schemas["BoardView"]>[] = [];
        const end = Math.min(countLoaded(before, status), matching);
        for (let offset = FIRST_PAGE; offset < end; offset += MAX_PAGE)
          pages.push(readPage(filters, { status, offset, limit: Math.min(end - offset, MAX_PAGE) }));
        return pages;
      });
      return mergePages(undefined, [first, ...(await Promise.all(rest))]);
    },
    // keep the previous results while the user types
    placeholderData: (before, query) => (query?.queryKey[1].projectId === filters.projectId ? before : undefined),
  });

/** The first cards of each column. A refetch reads as many as were loaded before. */
export const useBoard = (filters: BoardFilters) => useQuery(boardQuery(filters));

/** Return a function that loads the next cards of a column. */
export function useLoadMoreCards(filters: BoardFilters): (column: Column) => Promise<void> {
  const client = useQueryClient();
  return useCallback(
    async (column) => {
      const { queryKey } = boardQuery(filters);
      const offset = countLoaded(client.getQueryData(queryKey), column);
      const page = await readPage(filters, { status: column, offset, limit: NEXT_PAGE });
      client.setQueryData(queryKey, (board) => board && mergePages(board, [page]));
    },
    [client, filters],
  );
}

/** Apply a change to all cached cards, and update the counts of boards. */
export function updateCachedCards(client: QueryClient, change: CardChange): void {
  client.setQueriesData<Task[]>({ queryKey: keys.allTasks() }, (tasks) => tasks && change(tasks));
  client.setQueriesData<BoardData>({ queryKey: keys.boards() }, (board) => board && changeBoard(board, change));
}

export interface Move {
  task: TaskCard;
  to: Column;
  /** The place in the column; null means where new cards go. */
  at: number | null;
  feedback?: string;
  /** Called when the platform has accepted the feedback. */
  onSent?: () => void;
  /** Focus follows the card. */
  keepFocus?: boolean;
}

/**
 * Move a card optimistically, and move it back if the platform rejects it. Moves are sent one at a time in order, and the live refresh
 * waits for them.
 */
export function useMoveCard({ onError }: { onError: (error: Error, move: Move) => void }) {
  const client = useQueryClient();
  return useMutation({
    mutationKey: MOVE_CARD,
    scope: { id: "move" },
    mutationFn: ({ task, to, at, feedback }: Move) =>
      unwrap(
        api.POST("/api/v1/tasks/{task_id}/move", {
          params: { path: { task_id: task.id } },
          body: { status: to, position: at, feedback: feedback ?? null },
        }),
      ),
    onMutate: async ({ task, to, at }) => {
      // an older list would undo the move
      for (const queryKey of [keys.allTasks(), keys.boards()]) await client.cancelQueries({ queryKey });
      updateCachedCards(client, (cards) => moveCard(cards, task.id, to, at));
      return { status: task.status, position: task.position };
    },
    onSuccess: (card, move) => {
      move.onSent?.();
      client.setQueryData(keys.task(card.id), card);
      updateCachedCards(client, (cards) =>
        cards.map((item) => (item.id === card.id ? { ...item, ...card, position: item.position } : item)),
      );
    },
    onError: (error, move, before) => {
      if (before) updateCachedCards(client, (cards) => moveCard(cards, move.task.id, before.status, before.position));
      onError(error, move);
      void invalidate(client, keys.allTasks(), keys.boards());
    },
  });
}
