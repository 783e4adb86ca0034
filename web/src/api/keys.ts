/** The keys of all cached queries. The first element is a noun. `live/refresh.ts` invalidates queries by these prefixes. */
import type { BoardFilters } from "./board-data";

type Id = string | null | undefined;

/** Append the id, or return the prefix of all keys if there is none. */
const optional = (noun: string, id: Id): readonly string[] => (id ? [noun, id] : [noun]);

export const keys = {
  // account and people
  me: () => ["me"] as const,
  users: () => ["users"] as const,
  tokens: () => ["tokens"] as const,
  // projects and their settings
  projects: () => ["projects"] as const,
  archivedProjects: () => ["projects", "archived"] as const,
  project: (projectId: string) => ["projects", projectId] as const,
  members: (projectId: Id) => ["members", projectId] as const,
  credentials: (projectId: Id) => ["credentials", projectId] as const,
  preparations: (projectId: Id) => ["preparations", projectId] as const,
  mcpServers: (projectId: Id) => ["mcp-servers", projectId] as const,
  allSecrets: () => ["secrets"] as const,
  secrets: (projectId: string | undefined) => ["secrets", projectId ?? "own"] as const,
  allSchedules: () => ["schedules"] as const,
  schedules: (projectId: string | undefined) => ["schedules", projectId ?? null] as const,
  // agents and models
  agents: () => ["agents"] as const,
  modelPresets: () => ["model-presets"] as const,
  allModelProviders: () => ["providers"] as const,
  modelProviders: (projectId: string | undefined) => ["providers", projectId ?? "all"] as const,
  // tasks
  allTasks: () => ["tasks"] as const,
  tasks: (projectId: string | undefined) => ["tasks", { projectId: projectId ?? null }] as const,
  task: (taskId: string) => ["task", taskId] as const,
  openTasks: () => ["task"] as const,
  taskCounts: () => ["counts"] as const,
  taskSearch: (text: string) => ["searched", text] as const,
  queue: () => ["queue"] as const,
  boards: () => ["board"] as const,
  board: (filters: BoardFilters) => ["board", filters] as const,
  // sessions and conversations
  allSessions: () => ["sessions"] as const,
  sessions: (projectId: string | undefined, archived: boolean) =>
    ["sessions", { projectId: projectId ?? null, archived }] as const,
  recentSessions: () => ["sessions", "recent"] as const,
  session: (sessionId?: Id) => optional("session", sessionId),
  turns: (sessionId?: Id) => optional("turns", sessionId),
  agentState: (sessionId?: Id) => optional("agent", sessionId),
  checkpoints: (sessionId?: Id) => optional("checkpoints", sessionId),
  remoteAccess: (sessionId: string) => ["remote", sessionId] as const,
  asks: () => ["asks"] as const,
  pendingAsks: () => ["asks", "pending"] as const,
  sessionAsks: (sessionId: string) => ["asks", "session", sessionId] as const,
  // sandboxes
  allSandboxes: () => ["sandboxes"] as const,
  sandboxes: (filters: { status: string | null; all: boolean }) => ["sandboxes", filters] as const,
  sandboxStates: () => ["sandboxes", "of the board"] as const,
  sandbox: (sandboxId: Id) => ["sandbox", sandboxId] as const,
  ports: (sandboxId: Id) => ["ports", sandboxId] as const,
  metrics: (sandboxId: string) => ["metrics", sandboxId] as const,
  deniedConnections: (sandboxId: string) => ["denied", sandboxId] as const,
  terminals: (sandboxId: string) => ["terminals", sandboxId] as const,
  files: (sandboxId: Id) => ["files", sandboxId] as const,
  folder: (sandboxId: string, path: string) => ["files", sandboxId, path] as const,
  fileContent: (sandboxId: string, path: string) => ["opened", sandboxId, path] as const,
  commands: (sandboxId: Id) => ["commands", sandboxId] as const,
  command: (sandboxId: string, commandId: string) => ["commands", sandboxId, "one", commandId] as const,
  commandTail: (sandboxId: Id, commandId: string) => ["commands", sandboxId, "tail", commandId] as const,
  commandOutput: (commandId: string) => ["output", commandId] as const,
  // git and pull requests
  git: (sandboxId: Id) => ["git", sandboxId] as const,
  checkout: (sandboxId: string) => ["git", sandboxId, "checkout"] as const,
  checkoutFolder: (sandboxId: string) => ["git", sandboxId, "folder"] as const,
  gitStatus: (sandboxId: string) => ["git", sandboxId, "status"] as const,
  diff: (sandboxId: string, against: string) => ["git", sandboxId, "diff", against] as const,
  history: (sandboxId: string) => ["git", sandboxId, "history"] as const,
  commit: (sandboxId: string, commitId: string) => ["git", sandboxId, "commit", commitId] as const,
  allGitOperations: () => ["operations"] as const,
  gitOperations: (sandboxId: string) => ["operations", { sandboxId }] as const,
  pullRequests: () => ["pull"] as const,
  pullRequestsOfTask: (taskId: Id) => ["pull", "task", taskId] as const,
  pullRequest: (sessionId: string, taskId: string | undefined) =>
    taskId ? (["pull", "task", taskId, sessionId] as const) : (["pull", "session", sessionId] as const),
  comparison: (projectId: string, base: string, head: string) => ["pull", "compare", projectId, base, head] as const,
  // the platform
  usage: () => ["usage"] as const,
  usageDays: (since: string, projectId: string | undefined) => ["usage", "days", since, projectId ?? null] as const,
  audit: (search: object) => ["audit", search] as const,
  health: () => ["health"] as const,
  status: () => ["status"] as const,
  hosts: () => ["hosts"] as const,
  disk: () => ["disk"] as const,
  quotas: (of: "users" | "projects", id: string) => ["quotas", of, id] as const,
  helpDocument: (id: string) => ["help", id] as const,
};

/** Mutations that move a card. The live refresh waits for them. */
export const MOVE_CARD = ["move"] as const;
