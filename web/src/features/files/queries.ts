/** Queries and mutations for the files of a sandbox. */
import { queryOptions, useMutation, useQueryClient } from "@tanstack/react-query";
import { ApiError, api, got, type Problem, raw, type Schemas } from "@/api/client";
import { failed } from "@/ui/toast";

export type Entry = Schemas["Entry"];

export const folder = (sandboxId: string, path: string) =>
  queryOptions({
    queryKey: ["files", sandboxId, path],
    queryFn: async () => {
      const query = { path, depth: 1, limit: 10_000 };
      const { items, nextCursor } = await got(
        api.GET("/api/v1/sandboxes/{sandbox_id}/files/list", { params: { path: { sandbox_id: sandboxId }, query } }),
      );
      items.sort((a, b) => Number(b.kind === "dir") - Number(a.kind === "dir") || a.name.localeCompare(b.name));
      return { items, truncated: nextCursor !== null };
    },
  });

/** Return the current entry at a path; undefined if there is none. */
export async function look(sandboxId: string, path: string): Promise<Entry | undefined> {
  try {
    return await got(
      api.GET("/api/v1/sandboxes/{sandbox_id}/files/info", {
        params: { path: { sandbox_id: sandboxId }, query: { path } },
      }),
    );
  } catch (error) {
    if (error instanceof ApiError && error.status === 404) return undefined;
    throw error;
  }
}

/** Return whether a folder already contains one of these files. */
export async function anyExists(sandboxId: string, folder: string, files: File[]): Promise<boolean> {
  for (const file of files) if (await look(sandboxId, `${folder.replace(/\/$/, "")}/${file.name}`)) return true;
  return false;
}

export function address(sandboxId: string, path: string): string {
  return `/api/v1/sandboxes/${encodeURIComponent(sandboxId)}/files?path=${encodeURIComponent(path)}`;
}

/** A file's entry and content when it was opened. */
export interface Opened {
  entry: Entry;
  bytes: Uint8Array<ArrayBuffer>;
}

/** Read a file once, and again only on request: the text must not change while somebody edits it. */
export const content = (sandboxId: string, path: string, limit: (entry: Entry) => number) =>
  queryOptions({
    queryKey: ["opened", sandboxId, path],
    queryFn: async (): Promise<Opened> => {
      const entry = await look(sandboxId, path);
      if (!entry) throw new ApiError(404, { detail: `${path} no longer exists.`, code: "not_found" });
      if (entry.kind === "dir" || entry.size > limit(entry)) return { entry, bytes: new Uint8Array() };
      return { entry, bytes: new Uint8Array(await (await raw(address(sandboxId, path))).arrayBuffer()) };
    },
    staleTime: Number.POSITIVE_INFINITY,
    gcTime: 0,
    refetchOnReconnect: false,
  });

export async function write(sandboxId: string, path: string, body: BodyInit): Promise<void> {
  await raw(address(sandboxId, path), { method: "PUT", body, headers: { "Content-Type": "application/octet-stream" } });
}

export function useRemove(sandboxId: string, onRemoved: (path: string) => void) {
  const client = useQueryClient();
  return useMutation({
    mutationFn: (path: string) => raw(address(sandboxId, path), { method: "DELETE" }),
    onSuccess: (_, path) => {
      void client.invalidateQueries({ queryKey: ["files", sandboxId] });
      onRemoved(path);
    },
    onError: failed("Could not delete"),
  });
}

/** Upload a file and report progress from 0 to 1, which `fetch` does not support. */
export function send(
  sandboxId: string,
  path: string,
  file: File,
  progress: (part: number) => void,
  signal: AbortSignal,
): Promise<void> {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("PUT", address(sandboxId, path));
    request.setRequestHeader("X-Sandyard-CSRF", "1");
    request.setRequestHeader("Content-Type", "application/octet-stream");
    request.upload.onprogress = (event) => progress(event.total ? event.loaded / event.total : 0);
    request.onload = () => (request.status < 300 ? resolve() : reject(problem(request)));
    request.onerror = () =>
      reject(
        new ApiError(0, {
          detail: "The file could not be read or sent. Folders cannot be uploaded. For a file, check your connection.",
        }),
      );
    request.onabort = () => reject(new ApiError(0, { detail: "Upload cancelled." }));
    signal.addEventListener("abort", () => request.abort());
    request.send(file);
  });
}

function problem(request: XMLHttpRequest): ApiError {
  try {
    return new ApiError(request.status, JSON.parse(request.responseText) as Partial<Problem>);
  } catch {
    return new ApiError(request.status, {});
  }
}
