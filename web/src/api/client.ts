/** The client of the platform's API: typed by its OpenAPI document, with one error class. */
import createClient from "openapi-fetch";
import { addLoginKey } from "./login-key";
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
const signedOutListeners = new Set<() => void>();

/** Call the listener whenever the platform responds that nobody is signed in. Return a function that removes it. */
export function onSignedOut(listener: () => void): () => void {
  signedOutListeners.add(listener);
  return () => signedOutListeners.delete(listener);
}

async function fetchOrThrow(request: Request): Promise<Response> {
  try {
    return await fetch(request);
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError(0, { detail: OFFLINE, code: "unreachable" });
  }
}

/** Send a request that openapi-fetch does not support: streams and raw bytes. Throws ApiError. */
export async function fetchRaw(path: string, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  addLoginKey((name, value) => headers.set(name, value));
  const request = new Request(new URL(path, location.origin), { ...init, headers, credentials: "same-origin" });
  const response = await fetchOrThrow(request);
  if (!response.ok) throw await readError(response);
  return response;
}

async function readError(response: Response): Promise<ApiError> {
  return makeError(response.status, (await response.json().catch(() => ({}))) as Partial<Problem>);
}

/** Return the error of a response, and tell the listeners if it says that nobody is signed in. */
export function makeError(status: number, problem: Partial<Problem>): ApiError {
  if (status === 401) for (const listener of signedOutListeners) listener();
  return new ApiError(status, problem);
}

/** Send a request to a route of the platform: `api.GET("/api/v1/tasks", {...})`. Throws ApiError. Only modules in this folder use it. */
export const api = createClient<paths>({
  baseUrl: location.origin,
  credentials: "same-origin",
  fetch: fetchOrThrow,
});
api.use({
  onRequest({ request }) {
    addLoginKey((name, value) => request.headers.set(name, value));
    return request;
  },
  async onResponse({ response }) {
    if (!response.ok) throw await readError(response);
    return undefined;
  },
});

/** Return the body of a response of `api`: `await unwrap(api.GET("/api/v1/tasks", {...}))`. */
export async function unwrap<T>(response: Promise<{ data?: T | undefined }>): Promise<T> {
  return (await response).data as T;
}

interface PageOf<T> {
  items: T[];
  nextCursor?: string | null;
}

/** Read all pages of a list, up to about `limit` items. */
export async function readAllPages<T>(
  readPage: (cursor: string | undefined) => Promise<PageOf<T>>,
  limit = 5000,
): Promise<T[]> {
  const items: T[] = [];
  let cursor: string | undefined;
  do {
    const page = await readPage(cursor);
    items.push(...page.items);
    cursor = page.nextCursor ?? undefined;
  } while (cursor && items.length < limit);
  return items;
}

export function hasCode(error: unknown, code: string): error is ApiError {
  return error instanceof ApiError && error.code === code;
}
