import { monitorForElements } from "@atlaskit/pragmatic-drag-and-drop/adapter/element-adapter";
import { getRouteApi, useNavigate } from "@tanstack/react-router";
import { Plus } from "lucide-react";
import { type KeyboardEvent, useCallback, useEffect, useMemo, useRef, useState } from "react";
import { type BoardData, type BoardFilters, isFiltered } from "@/api/board-data";
import { COLUMN_ORDER, columnsOf, stepPlace, TARGET_COLUMNS } from "@/api/card-order";
import { useBoard, useLoadMoreCards } from "@/api/queries/board";
import type { Column, TaskCard } from "@/api/types";
import { NewTaskDialog } from "@/features/tasks/new-task";
import { useStored } from "@/lib/stored";
import { Button } from "@/ui/button";
import { useTitle } from "@/ui/page";
import { Loaded } from "@/ui/states";
import { showError } from "@/ui/toast";
import { type Actions, ActionsContext, type FocusRequest, useBoardActions } from "./actions";
import { AutoScroll } from "./auto-scroll";
import { CardDialogs } from "./card-dialogs";
import { CardMenu, type OpenMenu } from "./card-menu";
import { BoardColumn } from "./column";
import { ColumnPicker, showColumn } from "./column-picker";
import { EmptyBoard, LoadingBoard } from "./empty-board";
import { Filters } from "./filters";
import { firstColumn } from "./first-column";
import { findNextCard } from "./keyboard";
import { QueuePopover } from "./queue-popover";
import { useShortcut } from "./use-shortcut";
import { useBoardView } from "./view";

const route = getRouteApi("/inside/board");
const FOLDED: Column[] = ["cancelled"];
const ONE_COLUMN = "(max-width: 639px)";

export function BoardPage() {
  useTitle("Board");
  const search = route.useSearch();
  const navigate = route.useNavigate();
  const { project = null, q = null, agent = null, show = null } = search;
  const filters = useMemo<BoardFilters>(() => ({ projectId: project, q, agent, show }), [project, q, agent, show]);
  const board = useBoard(filters);
  const view = useBoardView(board.data, search.project);
  const setCreating = useCallback(
    (open: boolean) => navigate({ search: (before) => ({ ...before, new: open || undefined }), replace: true }),
    [navigate],
  );
  useShortcut("c", () => setCreating(true));
  return (
    <div className="flex min-h-0 flex-1 flex-col">
      <div className="flex shrink-0 flex-wrap items-center gap-2 px-3 py-2.5 sm:flex-nowrap sm:px-4">
        <h1 className="mr-auto text-lg font-semibold sm:mr-2">Board</h1>
        <div className="order-last flex w-full min-w-0 items-center gap-2 sm:order-none sm:mr-auto sm:w-auto sm:flex-1">
          <Filters view={view} />
        </div>
        <QueuePopover />
        <Button look="primary" onClick={() => setCreating(true)} aria-keyshortcuts="c" title="New task (c)">
          <Plus className="size-4" aria-hidden /> New task
        </Button>
      </div>
      <Loaded query={board} loading={<LoadingBoard />}>
        {(data) =>
          data.items.length || isFiltered(filters) ? (
            <Board data={data} filters={filters} view={view} />
          ) : (
            <EmptyBoard onCreate={() => setCreating(true)} />
          )
        }
      </Loaded>
      <NewTaskDialog open={search.new === true} onOpenChange={setCreating} projectId={search.project} />
    </div>
  );
}

function Board({
  data,
  filters,
  view,
}: {
  data: BoardData;
  filters: BoardFilters;
  view: ReturnType<typeof useBoardView>;
}) {
  const search = route.useSearch();
  const board = useRef<HTMLDivElement>(null);
  const announcement = useRef<HTMLDivElement>(null);
  const focusRequest: FocusRequest = useRef(null);
  const [stored, setFolded] = useStored<Column[]>("board.folded", FOLDED);
  const folded = useMemo(() => COLUMN_ORDER.filter((column) => stored.includes(column)), [stored]);
  const navigate = useNavigate();
  const [menu, setMenu] = useState<OpenMenu | null>(null);
  const [draggedFrom, setDraggedFrom] = useState<Column | null>(null);

  const loadCards = useLoadMoreCards(filters);
  const cardsByColumn = useMemo(() => columnsOf(data.items), [data.items]);
  const byId = useMemo(() => new Map(data.items.map((card) => [card.id, card])), [data.items]);
  const loadMore = useCallback(
    (column: Column) => loadCards(column).catch(showError("Could not load more cards")),
    [loadCards],
  );
  const announce = useCallback((text: string) => {
    if (announcement.current) announcement.current.textContent = text;
  }, []);
  const { actions, dialog, setDialog, run } = useBoardActions(announce, focusRequest);

  const latest = useRef({ cardsByColumn, byId, folded });
  latest.current = { cardsByColumn, byId, folded };
  const focusByColumn = useRef(new Map<Column, (index: number) => void>());
  const register = useCallback((column: Column, focus: ((index: number) => void) | null) => {
    if (focus) focusByColumn.current.set(column, focus);
    else focusByColumn.current.delete(column);
  }, []);
  const findCard = useCallback((id: unknown) => latest.current.byId.get(id as string), []);
  const fold = useCallback(
    (column: Column, on: boolean) =>
      setFolded(on ? [...latest.current.folded, column] : latest.current.folded.filter((other) => other !== column)),
    [setFolded],
  );

  const boardActions = useMemo<Actions>(() => {
    const handleKey = (task: TaskCard, event: KeyboardEvent) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      const now = latest.current;
      if (!event.altKey) {
        const next = findNextCard(event.key, now.cardsByColumn, now.folded, task);
        if (next) {
          event.preventDefault();
          focusRequest.current = null;
          focusByColumn.current.get(next.column)?.(next.index);
        }
        return;
      }
      const step = event.key === "ArrowUp" || event.key === "ArrowLeft" ? -1 : 1;
      if (event.key === "ArrowUp" || event.key === "ArrowDown") {
        event.preventDefault();
        const place = stepPlace(now.cardsByColumn[task.status], task, step);
        if (place !== null) actions.move(task, task.status, place, true);
      } else if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
        event.preventDefault();
        const to = COLUMN_ORDER[COLUMN_ORDER.indexOf(task.status) + step];
        if (to) actions.move(task, to, null, true);
      }
    };
    return {
      ...actions,
      handleKey,
      open: (task, tab) => navigate({ to: "/tasks/$taskId", params: { taskId: task.id }, search: tab ? { tab } : {} }),
      openMenu: (task, button) => {
        focusRequest.current = null; // A card that returns later must not take the focus from the menu, which would close it.
        setMenu({ task, button });
      },
    };
  }, [actions, navigate]);

  useEffect(() => {
    const autoScroll = board.current ? new AutoScroll(board.current, "x") : undefined;
    return monitorForElements({
      canMonitor: ({ source }) => source.data.kind === "card",
      onDragStart: ({ source }) => setDraggedFrom(findCard(source.data.id)?.status ?? null),
      onDrag: ({ location }) => autoScroll?.update(location.current.input.clientX, location.current.input.clientY),
      onDrop: () => {
        autoScroll?.stop();
        setDraggedFrom(null);
      },
    });
  }, [findCard]);

  const opened = useRef(false);
  useEffect(() => {
    if (opened.current || !view.asksKnown) return;
    opened.current = true;
    const first = firstColumn(data.items, view.asked);
    if (first && matchMedia(ONE_COLUMN).matches) showColumn(board.current, first);
  }, [data.items, view.asked, view.asksKnown]);

  const onlyProject = search.project ?? (view.projects.size === 1 ? [...view.projects.keys()][0] : undefined);
  const limits = (onlyProject && view.projects.get(onlyProject)?.settings.tasks?.wipLimits) || {};
  return (
    <ActionsContext value={boardActions}>
      <ColumnPicker board={board} counts={data.counts} shown={cardsByColumn} onPick={(column) => fold(column, false)} />
      <div
        ref={board}
        className={`flex min-h-0 flex-1 gap-2.5 overflow-x-auto px-3 pb-3 sm:snap-none sm:px-4 ${draggedFrom ? "" : "snap-x snap-mandatory"}`}
      >
        {COLUMN_ORDER.map((column) => (
          <BoardColumn
            key={column}
            column={column}
            shown={cardsByColumn[column]}
            count={data.counts[column]}
            onMore={loadMore}
            limit={limits[column as keyof typeof limits]}
            collapsed={folded.includes(column)}
            onCollapse={fold}
            view={view}
            find={findCard}
            rejectsDrop={
              draggedFrom !== null && draggedFrom !== column && !TARGET_COLUMNS[draggedFrom].includes(column)
            }
            register={register}
            focusRequest={focusRequest}
          />
        ))}
      </div>
      <div ref={announcement} aria-live="polite" className="sr-only" data-testid="announcements" />
      <CardMenu shown={menu && { ...menu, task: byId.get(menu.task.id) ?? menu.task }} onClose={() => setMenu(null)} />
      <CardDialogs dialog={dialog} onClose={() => setDialog(null)} onMove={run} />
    </ActionsContext>
  );
}
