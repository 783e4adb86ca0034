/** The one way to the platform: typed by its OpenAPI document, errors as one class. */
import createClient from "openapi-fetch";
import type { components, paths } from "./schema";

export type Schemas = components["schemas"];
export type Problem = Schemas["Problem"];

/** What the platform said no to, in its own words. `status` 0: it was not reached at all. */
export class ApiError extends Error {
  readonly status: number;
  readonly code: string;
  readonly problem: Partial<Problem>;

  constructor(status: number, problem: Partial<Problem>) {
    super(problem.detail || problem.title || `The platform answered ${status}.`);
    this.name = "ApiError";
    this.status = status;
    this.code = problem.code ?? "";
    this.problem = problem;
  }
}

const OFFLINE = "The platform cannot be reached. Is it running, and are you online?";
const signedOut = new Set<() => void>();

/** Told whenever the platform says that nobody is signed in. */
export function onSignedOut(listener: () => void): () => void {
  signedOut.add(listener);
  return () => signedOut.delete(listener);
}

async function reach(request: Request): Promise<Response> {
  try {
    return await fetch(request);
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError(0, { detail: OFFLINE, code: "unreachable" });
  }
}

/** For what openapi-fetch does not do: streams and raw bytes. Throws ApiError. */
export async function raw(path: string, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  headers.set("X-Sandyard-CSRF", "1");
  const request = new Request(new URL(path, location.origin), { ...init, headers, credentials: "same-origin" });
  const response = await reach(request);
  if (!response.ok) throw await failure(response);
  return response;
}

async function failure(response: Response): Promise<ApiError> {
  const problem = (await response.json().catch(() => ({}))) as Partial<Problem>;
  if (response.status === 401) for (const listener of signedOut) listener();
  return new ApiError(response.status, problem);
}

const client = createClient<paths>({
  baseUrl: location.origin,
  credentials: "same-origin",
  headers: { "X-Sandyard-CSRF": "1" },
  fetch: reach,
});
client.use({
  async onResponse({ response }) {
    if (!response.ok) throw await failure(response);
    return undefined;
  },
});

/** `await got(api.GET("/api/v1/tasks", {...}))` is the answer's body, or throws ApiError. */
export const api = client;

export async function got<T>(answer: Promise<{ data?: T | undefined }>): Promise<T> {
  return (await answer).data as T;
}

interface PageOf<T> {
  items: T[];
  nextCursor?: string | null;
}

/** Every page of a list, up to `limit` items. */
export async function all<T>(page: (cursor: string | undefined) => Promise<PageOf<T>>, limit = 5000): Promise<T[]> {
  const items: T[] = [];
  let cursor: string | undefined;
  do {
    const next = await page(cursor);
    items.push(...next.items);
    cursor = next.nextCursor ?? undefined;
  } while (cursor && items.length < limit);
  return items;
}
