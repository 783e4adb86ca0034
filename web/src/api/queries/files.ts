/** The files of a sandbox. */
import { useQuery } from "@tanstack/react-query";
import { saveUrl } from "@/lib/save-file";
import { ApiError, api, fetchRaw, makeError, type Problem, unwrap } from "../client";
import { keys } from "../keys";
import { addLoginKey } from "../login-key";
import { defineMutation } from "../mutation";
import type { FileEntry } from "../types";
import { addTicket } from "./tickets";

/** The entries of a folder: folders first, then files, by name. */
export const useFolder = (sandboxId: string, path: string) =>
  useQuery({
    queryKey: keys.folder(sandboxId, path),
    queryFn: async () => {
      const query = { path, depth: 1, limit: 10_000 };
      const { items, nextCursor } = await unwrap(
        api.GET("/api/v1/sandboxes/{sandbox_id}/files/list", { params: { path: { sandbox_id: sandboxId }, query } }),
      );
      items.sort((a, b) => Number(b.kind === "dir") - Number(a.kind === "dir") || a.name.localeCompare(b.name));
      return { items, truncated: nextCursor !== null };
    },
  });

/** Return the current entry at a path; undefined if there is none. */
async function readEntry(sandboxId: string, path: string): Promise<FileEntry | undefined> {
  try {
    return await unwrap(
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
export async function containsAny(sandboxId: string, folder: string, files: File[]): Promise<boolean> {
  for (const file of files) if (await readEntry(sandboxId, `${folder.replace(/\/$/, "")}/${file.name}`)) return true;
  return false;
}

function fileUrl(sandboxId: string, path: string): string {
  return `/api/v1/sandboxes/${encodeURIComponent(sandboxId)}/files?path=${encodeURIComponent(path)}`;
}

/** A file's entry and content when it was opened. */
export interface OpenedFile {
  entry: FileEntry;
  bytes: Uint8Array<ArrayBuffer>;
}

/** Read a file once, and again only on request: the text must not change while somebody edits it. */
export const useFileContent = (sandboxId: string, path: string, limit: (entry: FileEntry) => number) =>
  useQuery({
    queryKey: keys.fileContent(sandboxId, path),
    queryFn: async (): Promise<OpenedFile> => {
      const entry = await readEntry(sandboxId, path);
      if (!entry) throw new ApiError(404, { detail: `${path} no longer exists.`, code: "not_found" });
      if (entry.kind === "dir" || entry.size > limit(entry)) return { entry, bytes: new Uint8Array() };
      return { entry, bytes: new Uint8Array(await (await fetchRaw(fileUrl(sandboxId, path))).arrayBuffer()) };
    },
    staleTime: Number.POSITIVE_INFINITY,
    gcTime: 0,
    refetchOnReconnect: false,
  });

async function writeFile(sandboxId: string, path: string, body: BodyInit): Promise<void> {
  await fetchRaw(fileUrl(sandboxId, path), {
    method: "PUT",
    body,
    headers: { "Content-Type": "application/octet-stream" },
  });
}

/** Create an empty file. Fails if there is one. */
export const useCreateFile = defineMutation({
  request: async ({ sandboxId, path }: { sandboxId: string; path: string }) => {
    const existing = await readEntry(sandboxId, path).catch(() => undefined); // its folder may not exist yet
    if (existing) throw new Error(`${path} already exists.`);
    await writeFile(sandboxId, path, "");
  },
  onSuccess: (client, _, { sandboxId }) => void client.invalidateQueries({ queryKey: keys.files(sandboxId) }),
});

/** Thrown instead of overwriting a file that was changed in the sandbox after it was opened. */
export class FileChangedError extends Error {}

interface FileSave {
  sandboxId: string;
  path: string;
  text: string;
  /** The entry that was opened. If the file differs from it, nothing is written. Null overwrites the file in any case. */
  expected: FileEntry | null;
}

/** Write a text file. Returns its new entry. */
export const useSaveFile = defineMutation({
  request: async ({ sandboxId, path, text, expected }: FileSave) => {
    if (expected) {
      const now = await readEntry(sandboxId, path);
      if (!now || now.modifiedAt !== expected.modifiedAt || now.size !== expected.size) throw new FileChangedError();
    }
    await writeFile(sandboxId, path, text);
    return readEntry(sandboxId, path);
  },
  onSuccess: (client, _, { sandboxId }) => void client.invalidateQueries({ queryKey: keys.files(sandboxId) }),
});

/** Delete a file, or a folder with its contents. */
export const useDeleteFile = defineMutation({
  request: ({ sandboxId, path }: { sandboxId: string; path: string }) =>
    fetchRaw(fileUrl(sandboxId, path), { method: "DELETE" }),
  onSuccess: (client, _, { sandboxId }) => void client.invalidateQueries({ queryKey: keys.files(sandboxId) }),
});

/** Download a file. The browser saves it while it arrives, so its size does not matter. */
export const useDownloadFile = defineMutation({
  request: async ({ sandboxId, path, name }: { sandboxId: string; path: string; name: string }) =>
    saveUrl(await addTicket(fileUrl(sandboxId, path)), name),
});

/** Upload a file and report progress from 0 to 1, which `fetch` does not support. */
export function uploadFile(
  sandboxId: string,
  path: string,
  file: File,
  onProgress: (fraction: number) => void,
  signal: AbortSignal,
): Promise<void> {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("PUT", fileUrl(sandboxId, path));
    addLoginKey((name, value) => request.setRequestHeader(name, value));
    request.setRequestHeader("Content-Type", "application/octet-stream");
    request.upload.onprogress = (event) => onProgress(event.total ? event.loaded / event.total : 0);
    request.onload = () => (request.status < 300 ? resolve() : reject(makeUploadError(request)));
    request.onerror = () =>
      reject(
        new ApiError(0, {
          detail: "The file could not be uploaded. Check your connection. Folders cannot be uploaded.",
        }),
      );
    request.onabort = () => reject(new ApiError(0, { detail: "Upload cancelled." }));
    signal.addEventListener("abort", () => request.abort());
    request.send(file);
  });
}

function makeUploadError(request: XMLHttpRequest): ApiError {
  try {
    return makeError(request.status, JSON.parse(request.responseText) as Partial<Problem>);
  } catch {
    return makeError(request.status, {});
  }
}
