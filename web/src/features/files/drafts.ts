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
let keys: readonly string[] = [];

const makeKey = (sandboxId: string, path: string) => `${sandboxId}:${path}`;

function warnBeforeUnload(event: BeforeUnloadEvent): void {
  event.preventDefault();
}

function notifyListeners(): void {
  keys = [...drafts.keys()];
  if (drafts.size) addEventListener("beforeunload", warnBeforeUnload);
  else removeEventListener("beforeunload", warnBeforeUnload);
  for (const listener of listeners) listener();
}

export function getDraft(sandboxId: string, path: string): Draft | undefined {
  return drafts.get(makeKey(sandboxId, path));
}

export function storeDraft(sandboxId: string, path: string, draft: Draft): void {
  const isNew = !drafts.has(makeKey(sandboxId, path));
  drafts.set(makeKey(sandboxId, path), draft);
  if (isNew) notifyListeners();
}

export function deleteDraft(sandboxId: string, path: string): void {
  if (drafts.delete(makeKey(sandboxId, path))) notifyListeners();
}

/** Return a function that tells whether a path has unsaved text. Updates when drafts change. */
export function useUnsaved(sandboxId: string): (path: string) => boolean {
  const current = useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => keys,
  );
  return (path) => current.includes(makeKey(sandboxId, path));
}
