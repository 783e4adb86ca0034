/** The client of the platform's API: typed by its OpenAPI document, with one error class. */
import createClient from "openapi-fetch";
import type { components, paths } from "./schema";

export type Schemas = components["schemas"];
export type Problem = Schemas["Problem"];

/** A failed request, with the platform's message. `status` 0 means that the platform could not be reached. */
export class ApiError extends Error {
  readonly status: number;
  readonly code: string;
  readonly problem: Partial<Problem>;

  constructor(status: number, problem: Partial<Problem>) {
    super(problem.detail || problem.title || `The platform responded with status ${status}.`);
    this.name = "ApiError";
    this.status = status;
    this.code = problem.code ?? "";
    this.problem = problem;
  }
}

const OFFLINE = "Could not reach the platform. Check that it is running and that you are online.";
const signedOut = new Set<() => void>();

/** Call the listener whenever the platform responds that nobody is signed in. Return a function that removes it. */
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

/** Send a request that openapi-fetch does not support: streams and raw bytes. Throws ApiError. */
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

/** `await got(api.GET("/api/v1/tasks", {...}))` returns the response body or throws ApiError. */
export const api = client;

export async function got<T>(answer: Promise<{ data?: T | undefined }>): Promise<T> {
  return (await answer).data as T;
}

interface PageOf<T> {
  items: T[];
  nextCursor?: string | null;
}

/** Read all pages of a list, up to about `limit` items. */
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
