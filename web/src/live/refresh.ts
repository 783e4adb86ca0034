/** Refetch what events have made stale: only the affected queries, and at most a few times a second. */
import type { Query, QueryClient, QueryKey } from "@tanstack/react-query";
import { type BoardData, type BoardFilters, changeBoard, isFiltered, removeCard } from "@/api/board-data";
import { keys, MOVE_CARD } from "@/api/keys";
import { updateCachedCards } from "@/api/queries/board";
import { readTask, taskQuery } from "@/api/queries/tasks";
import { invalidate } from "@/api/refresh";
import type { PlatformEvent, Task } from "@/api/types";

/** Delay from an event to the refetch, so that events at the same time cause only one. */
const DELAY_MS = 150;
/** Minimum interval between refetches while events keep coming. */
const MIN_INTERVAL_MS = 500;

/** Return the key prefixes of the queries that an event makes stale. Cards are not included: `Refresher` reads them one by one. */
export function staleKeys(event: PlatformEvent): QueryKey[] {
  const [noun, verb] = event.kind.split(".") as [string, string];
  const { projectId, sandboxId, sessionId, taskId } = event;
  switch (noun) {
    case "task": {
      const changesLists = verb === "moved" || verb === "created" || verb === "deleted";
      return [
        keys.queue(),
        keys.taskCounts(),
        keys.pullRequestsOfTask(taskId),
        ...(changesLists ? [keys.allTasks(), keys.boards()] : []),
      ];
    }
    case "attempt":
      return [keys.queue()];
    case "turn": {
      const ended = verb === "completed" || verb === "failed" || verb === "over_budget";
      return [keys.turns(sessionId), keys.agentState(sessionId), ...(ended ? [keys.usage()] : [])];
    }
    case "agent":
      return [keys.agentState(sessionId), ...(sessionId ? [] : [keys.agents()])];
    case "ask":
      return [keys.asks()];
    case "session":
      return [keys.allSessions(), keys.session(sessionId), keys.checkpoints(sessionId)];
    case "sandbox":
      return [keys.allSandboxes(), keys.sandbox(sandboxId), keys.session(sessionId), keys.ports(sandboxId)];
    case "command":
      return verb === "output" ? [] : [keys.commands(sandboxId)];
    case "file":
      return [keys.files(sandboxId)];
    case "git": {
      const operations = sandboxId ? keys.gitOperations(sandboxId) : keys.allGitOperations();
      return verb === "progress" ? [] : [keys.git(sandboxId), keys.checkpoints(sessionId), operations];
    }
    case "pull_request":
      return [keys.pullRequests()];
    case "project":
      return [keys.projects(), keys.members(projectId), keys.credentials(projectId)];
    case "preparation":
      return [keys.preparations(projectId)];
    case "schedule":
      return [keys.allSchedules()];
    case "secret":
      return [keys.allSecrets()];
    case "user":
      return [keys.users()];
    case "token":
      return [keys.tokens()];
    case "mcp_server":
      return [keys.mcpServers(projectId)];
    case "model_provider":
      return [keys.allModelProviders(), keys.agents(), keys.projects()]; // a new model can change the default agent
    default:
      return [];
  }
}

/** Return whether the event may change how a card looks. */
export function touchesTask(event: PlatformEvent): boolean {
  if (!event.taskId) return false;
  if (event.kind.startsWith("message.") || event.kind.startsWith("command.") || event.kind.startsWith("file."))
    return false;
  return event.kind !== "git.progress";
}

/** Return whether the query with this key contains the task. Lists of tasks contain all tasks, also those that they do not have yet. */
function containsTask([noun, which]: QueryKey, data: unknown, id: string): boolean {
  if (noun === "task") return which === id;
  if (noun === "board") return Boolean((data as BoardData | undefined)?.items.some((card) => card.id === id));
  return noun === "tasks";
}

/** Collect events and refetch a few times a second, but not while a card is being moved (see `useMoveCard`). */
export class Refresher {
  private readonly staleKeys = new Map<string, QueryKey>();
  private readonly cards = new Set<string>();
  private asksChanged = false;
  private lastRefetch = 0;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private readonly client: QueryClient;

  constructor(client: QueryClient) {
    this.client = client;
  }

  handleEvent(event: PlatformEvent): void {
    for (const key of staleKeys(event)) this.staleKeys.set(JSON.stringify(key), key);
    this.asksChanged ||= event.kind.startsWith("ask.");
    if (event.kind === "task.deleted" && event.taskId) this.removeTask(event.taskId);
    else if (touchesTask(event) && event.taskId) this.cards.add(event.taskId);
    this.timer ??= setTimeout(
      () => this.refetchStale(),
      Math.max(DELAY_MS, this.lastRefetch + MIN_INTERVAL_MS - Date.now()),
    );
  }

  reset(): void {
    void this.client.invalidateQueries();
  }

  private refetchStale(): void {
    this.timer = undefined;
    if (this.client.isMutating({ mutationKey: MOVE_CARD })) {
      this.timer = setTimeout(() => this.refetchStale(), DELAY_MS); // do not move cards while a person drags one
      return;
    }
    this.lastRefetch = Date.now();
    const stale = [...this.staleKeys.values()];
    for (const id of this.cards) this.invalidateInactive(id);
    const cards = [...this.cards].filter((id) => this.isShown(id));
    const touched = this.cards.size > 0;
    const asksChanged = this.asksChanged;
    this.staleKeys.clear();
    this.cards.clear();
    this.asksChanged = false;
    for (const queryKey of stale) void this.client.invalidateQueries({ queryKey });
    if (touched || asksChanged) {
      // the filters may match other cards now
      void this.client.invalidateQueries({
        queryKey: keys.boards(),
        predicate: ({ queryKey }) => isFiltered(queryKey[1] as BoardFilters),
      });
    }
    if (cards.length > 20) {
      void invalidate(this.client, keys.allTasks(), keys.boards(), keys.openTasks());
    } else {
      for (const id of cards) void this.refetchCard(id);
    }
  }

  /** Mark the task's queries that no component uses as stale, so that they are refetched when they are shown. */
  private invalidateInactive(id: string): void {
    void this.client.invalidateQueries({ ...this.queriesWith(id), refetchType: "none", type: "inactive" });
  }

  /** Return whether the page shows this card. */
  private isShown(id: string): boolean {
    return this.client.getQueryCache().findAll({ ...this.queriesWith(id), type: "active" }).length > 0;
  }

  private queriesWith(id: string) {
    return { predicate: ({ queryKey, state }: Query) => containsTask(queryKey, state.data, id) };
  }

  private async refetchCard(id: string): Promise<void> {
    try {
      const card = await readTask(id);
      this.client.setQueryData(taskQuery(id).queryKey, card);
      for (const [key, known] of this.client.getQueriesData<Task[]>({ queryKey: keys.allTasks() })) {
        const { projectId } = key[1] as { projectId: string | null };
        if (known && (projectId === null || projectId === card.projectId)) {
          this.client.setQueryData(
            key,
            known.some((candidate) => candidate.id === id)
              ? known.map((item) => (item.id === id ? card : item))
              : [card, ...known],
          );
        }
      }
      // a board that has not loaded the card yet does not need it; created and moved events refetch the whole board
      this.client.setQueriesData<BoardData>({ queryKey: keys.boards() }, (known) =>
        known?.items.some((item) => item.id === id)
          ? changeBoard(known, (cards) => cards.map((item) => (item.id === id ? { ...item, ...card } : item)))
          : known,
      );
    } catch {
      void invalidate(this.client, keys.allTasks(), keys.boards());
    }
  }

  private removeTask(id: string): void {
    updateCachedCards(this.client, removeCard(id));
    void this.client.invalidateQueries({ queryKey: keys.task(id) });
  }
}
