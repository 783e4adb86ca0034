/** Refetch what events have made stale: only the affected queries, and at most a few times a second. */
import type { Query, QueryClient, QueryKey } from "@tanstack/react-query";
import { type BoardData, type BoardWish, changed, isFiltered, without } from "@/api/board-data";
import { changeCards } from "@/api/cards";
import { api, got } from "@/api/client";
import type { PlatformEvent, Task } from "@/api/types";

/** Delay from the first event to the refetch. */
const GATHER_MS = 150;
/** Minimum interval between refetches while events keep coming. */
const PAUSE_MS = 500;

/** Return the key prefixes of the queries that an event makes stale. Cards are not included: `Refresher` reads them one by one. */
export function stale(event: PlatformEvent): QueryKey[] {
  const [noun, verb] = event.kind.split(".") as [string, string];
  const session = event.sessionId ? [event.sessionId] : [];
  const keys: QueryKey[] = [];
  switch (noun) {
    case "task":
      keys.push(["queue"], ["counts"], ["pull", "task", event.taskId]);
      if (verb === "moved" || verb === "created" || verb === "deleted") keys.push(["tasks"], ["board"]); // other cards move too
      break;
    case "attempt":
      keys.push(["queue"], ["attempts", event.taskId]);
      break;
    case "turn":
      keys.push(["turns", ...session], ["agent", ...session]);
      if (verb === "completed" || verb === "failed" || verb === "over_budget") keys.push(["usage"]);
      break;
    case "agent":
      keys.push(["agent", ...session]);
      if (!event.sessionId) keys.push(["agents"]);
      break;
    case "ask":
      keys.push(["asks"]);
      break;
    case "session":
      keys.push(["sessions"], ["session", ...session], ["checkpoints", ...session]);
      break;
    case "sandbox":
      keys.push(["sandboxes"], ["sandbox", event.sandboxId], ["session", ...session], ["ports", event.sandboxId]);
      break;
    case "command":
      if (verb !== "output") keys.push(["commands", event.sandboxId]);
      break;
    case "file":
      keys.push(["files", event.sandboxId]);
      break;
    case "git":
      if (verb !== "progress") {
        const operations = event.sandboxId ? [{ sandboxId: event.sandboxId }] : [];
        keys.push(["git", event.sandboxId], ["checkpoints", ...session], ["operations", ...operations]);
      }
      break;
    case "pull_request":
      keys.push(["pull"], ["pulls"]);
      break;
    case "project":
      keys.push(["projects"], ["members", event.projectId], ["credentials", event.projectId]);
      break;
    case "preparation":
      keys.push(["preparations", event.projectId]);
      break;
    case "schedule":
      keys.push(["schedules"]);
      break;
    case "secret":
      keys.push(["secrets"]);
      break;
    case "user":
      keys.push(["users"]);
      break;
    case "token":
      keys.push(["tokens"]);
      break;
    case "mcp_server":
      keys.push(["mcp-servers", event.projectId]);
      break;
    case "model_provider":
      keys.push(["providers"], ["agents"], ["projects"]); // a new model can change the default agent
      break;
  }
  return keys;
}

/** Return whether the event may change how a card looks. */
export function touchesTask(event: PlatformEvent): boolean {
  if (!event.taskId) return false;
  if (event.kind.startsWith("message.") || event.kind.startsWith("command.") || event.kind.startsWith("file."))
    return false;
  return event.kind !== "git.progress";
}

/** Return whether the query with this key contains the task. Task lists are complete, so a task missing from one belongs to it too. */
function containsTask([noun, which]: QueryKey, data: unknown, id: string): boolean {
  if (noun === "task") return which === id;
  if (noun === "board") return Boolean((data as BoardData | undefined)?.items.some((one) => one.id === id));
  return noun === "tasks";
}

/** Collect events and refetch a few times a second, but not while a card is being moved (mutations with the key `move`). */
export class Refresher {
  private readonly keys = new Map<string, QueryKey>();
  private readonly cards = new Set<string>();
  private asks = false;
  private acted = 0;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private readonly client: QueryClient;

  constructor(client: QueryClient) {
    this.client = client;
  }

  see(event: PlatformEvent): void {
    for (const key of stale(event)) this.keys.set(JSON.stringify(key), key);
    this.asks ||= event.kind.startsWith("ask.");
    if (event.kind === "task.deleted" && event.taskId) this.forget(event.taskId);
    else if (touchesTask(event) && event.taskId) this.cards.add(event.taskId);
    this.timer ??= setTimeout(() => this.act(), Math.max(GATHER_MS, this.acted + PAUSE_MS - Date.now()));
  }

  reset(): void {
    void this.client.invalidateQueries();
  }

  private act(): void {
    this.timer = undefined;
    if (this.client.isMutating({ mutationKey: ["move"] })) {
      this.timer = setTimeout(() => this.act(), GATHER_MS); // do not move cards while a person drags one
      return;
    }
    this.acted = Date.now();
    const keys = [...this.keys.values()];
    const cards = [...this.cards].filter((id) => this.isShown(id));
    const touched = this.cards.size > 0;
    const asks = this.asks;
    this.keys.clear();
    this.cards.clear();
    this.asks = false;
    for (const queryKey of keys) void this.client.invalidateQueries({ queryKey });
    if (touched || asks) {
      // the filters may match other cards now
      void this.client.invalidateQueries({
        queryKey: ["board"],
        predicate: ({ queryKey }) => isFiltered(queryKey[1] as BoardWish),
      });
    }
    if (cards.length > 20) {
      void this.client.invalidateQueries({ queryKey: ["tasks"] });
      void this.client.invalidateQueries({ queryKey: ["board"] });
      void this.client.invalidateQueries({ queryKey: ["task"] });
    } else {
      for (const id of cards) void this.refetchCard(id);
    }
  }

  /** Return whether the page shows this card. Inactive queries are invalidated, to be refetched when shown. */
  private isShown(id: string): boolean {
    const filters = { predicate: ({ queryKey, state }: Query) => containsTask(queryKey, state.data, id) };
    void this.client.invalidateQueries({ ...filters, refetchType: "none", type: "inactive" });
    return this.client.getQueryCache().findAll({ ...filters, type: "active" }).length > 0;
  }

  private async refetchCard(id: string): Promise<void> {
    try {
      const card = await got(api.GET("/api/v1/tasks/{task_id}", { params: { path: { task_id: id } } }));
      this.client.setQueryData(["task", id], card);
      for (const [key, known] of this.client.getQueriesData<Task[]>({ queryKey: ["tasks"] })) {
        const { projectId } = key[1] as { projectId: string | null };
        if (known && (projectId === null || projectId === card.projectId)) {
          this.client.setQueryData(
            key,
            known.some((one) => one.id === id) ? known.map((one) => (one.id === id ? card : one)) : [card, ...known],
          );
        }
      }
      // a card not loaded by a board is further down in it; new cards come with created and moved events
      this.client.setQueriesData<BoardData>({ queryKey: ["board"] }, (known) =>
        known?.items.some((one) => one.id === id)
          ? changed(known, (cards) => cards.map((one) => (one.id === id ? { ...one, ...card } : one)))
          : known,
      );
    } catch {
      for (const noun of ["tasks", "board"]) void this.client.invalidateQueries({ queryKey: [noun] });
    }
  }

  private forget(id: string): void {
    changeCards(this.client, without(id));
    void this.client.invalidateQueries({ queryKey: ["task", id] });
  }
}
