/** Unsaved text by sandbox and path. Kept while other files or pages are shown; the browser asks before it is lost. */
import { useSyncExternalStore } from "react";
import type { FileEntry } from "@/api/types";

export interface Draft {
  text: string;
  /** The file's entry when it was opened. */
  entry: FileEntry;
}

const drafts = new Map<string, Draft>();
const listeners = new Set<() => void>();
let paths: readonly string[] = [];

const key = (sandboxId: string, path: string) => `${sandboxId}:${path}`;

function warn(event: BeforeUnloadEvent): void {
  event.preventDefault();
}

function changed(): void {
  paths = [...drafts.keys()];
  if (drafts.size) addEventListener("beforeunload", warn);
  else removeEventListener("beforeunload", warn);
  for (const listener of listeners) listener();
}

export function draftOf(sandboxId: string, path: string): Draft | undefined {
  return drafts.get(key(sandboxId, path));
}

export function keepDraft(sandboxId: string, path: string, draft: Draft): void {
  const fresh = !drafts.has(key(sandboxId, path));
  drafts.set(key(sandboxId, path), draft);
  if (fresh) changed();
}

export function deleteDraft(sandboxId: string, path: string): void {
  if (drafts.delete(key(sandboxId, path))) changed();
}

/** Return a function that tells whether a path has unsaved text. Updates when drafts change. */
export function useUnsaved(sandboxId: string): (path: string) => boolean {
  const now = useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => paths,
  );
  return (path) => now.includes(key(sandboxId, path));
}
