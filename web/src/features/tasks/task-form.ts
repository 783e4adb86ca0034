/** The draft of the task dialog, and its conversion to API requests. */
import type { Schemas } from "@/api/client";
import type { Task } from "@/api/types";

/** The agent and model of an attempt. An empty string means the project's default. */
export interface AttemptChoice {
  agent: string;
  model: string;
}

export interface Draft {
  title: string;
  description: string;
  projectId: string;
  /** One row per attempt. */
  rows: AttemptChoice[];
  baseBranch: string;
  /** The session that its attempts start from copies of. An empty string means the base branch. */
  fromSessionId: string;
  priority: string;
  usd: string;
  tokens: string;
  /** Ids of the tasks that must be done first. */
  needs: string[];
  start: boolean;
}

export const MAX_ATTEMPTS = 8;
export const MAX_NEEDS = 50;

export function emptyDraft(projectId: string, agent: string, fromSessionId = ""): Draft {
  return {
    title: "", description: "", projectId, rows: [{ agent, model: "" }], baseBranch: "", fromSessionId, priority: "", usd: "",
    tokens: "", needs: [], start: true,
  }; // biome-ignore format: all of it is empty
}

export function draftOf(task: Task): Draft {
  const wanted = task.wanted.length ? task.wanted : [{ agent: task.agent, model: task.model }];
  return {
    title: task.title,
    description: task.description,
    projectId: task.projectId,
    rows: wanted.map((attempt) => ({
      agent: attempt.agent ?? task.agent ?? "",
      model: attempt.model ?? task.model ?? "",
    })),
    baseBranch: task.baseBranch ?? "",
    fromSessionId: task.fromSessionId ?? "",
    priority: task.priority ? String(task.priority) : "",
    usd: task.budget.usd ? String(task.budget.usd) : "",
    tokens: task.budget.tokens ? String(task.budget.tokens) : "",
    needs: task.needs,
    start: task.startWhenReady,
  };
}

/** Validate the draft locally. Returns error messages by API field name. */
export function errorsOf(draft: Draft): Record<string, string> {
  const errors: Record<string, string> = {};
  if (!draft.title.trim()) errors.title = "Enter a title.";
  if (!draft.projectId) errors.projectId = "Choose a project.";
  const priority = Number(draft.priority);
  if (!Number.isInteger(priority) || Math.abs(priority) > 100)
    errors.priority = "Enter a whole number from -100 to 100.";
  if (draft.usd.trim() && !(Number(draft.usd) > 0))
    errors["budget.usd"] = "Enter an amount above 0, or leave it empty.";
  const tokens = Number(draft.tokens);
  if (draft.tokens.trim() && !(Number.isInteger(tokens) && tokens > 0))
    errors["budget.tokens"] = "Enter a whole number above 0, or leave it empty.";
  return errors;
}

type Fields = Omit<Schemas["NewTask"], "projectId" | "start">;

function fieldsOf(draft: Draft): Fields {
  const rows = draft.rows.map((row) => ({ agent: row.agent || null, model: row.model.trim() || null }));
  const single = rows.length === 1 ? rows[0] : undefined; // several attempts are sent as `attempts` instead
  return {
    title: draft.title.trim(),
    description: draft.description,
    agent: single?.agent ?? null,
    model: single?.model ?? null,
    attempts: single ? [] : rows,
    baseBranch: (!draft.fromSessionId && draft.baseBranch.trim()) || null, // the session's commit replaces it
    fromSessionId: draft.fromSessionId || null,
    priority: Number(draft.priority) || 0,
    budget: { usd: Number(draft.usd) || null, tokens: Number(draft.tokens) || null },
    needs: draft.needs,
  };
}

export function newTask(draft: Draft): Schemas["NewTask"] {
  return { ...fieldsOf(draft), projectId: draft.projectId, start: draft.start };
}

/** Return only the changed fields, so that concurrent changes by others are kept; null if nothing changed. */
export function changesOf(task: Task, draft: Draft): Schemas["TaskChange"] | null {
  const before = draftOf(task);
  const [old, now] = [fieldsOf(before), fieldsOf(draft)];
  const changed = (Object.keys(now) as (keyof Fields)[]).filter(
    (name) => JSON.stringify(old[name]) !== JSON.stringify(now[name]),
  );
  const start = task.status === "backlog" && before.start !== draft.start ? { start: draft.start } : {};
  const changes = { ...Object.fromEntries(changed.map((name) => [name, now[name]])), ...start };
  return Object.keys(changes).length ? changes : null;
}

/** Convert the platform's validation errors to messages by field. */
export function errorsByField(
  errors: readonly { field: string; message: string }[] | null | undefined,
): Record<string, string> {
  return Object.fromEntries((errors ?? []).map((error) => [error.field, error.message]));
}

/** The API fields of a draft field whose name is different. */
const API_FIELDS: Partial<Record<keyof Draft, RegExp>> = {
  usd: /^budget/,
  tokens: /^budget/,
  rows: /^(attempts|agent|model)/,
};

/** Return the errors without those of the edited fields. */
export function remainingErrors(errors: Record<string, string>, change: Partial<Draft>): Record<string, string> {
  const edited = (Object.keys(change) as (keyof Draft)[]).map((name) => API_FIELDS[name] ?? new RegExp(`^${name}$`));
  return Object.fromEntries(Object.entries(errors).filter(([field]) => !edited.some((name) => name.test(field))));
}
