/** The open preview, if any. One for the whole application, so that it stays open during navigation. */
import { useSyncExternalStore } from "react";

export interface OpenPreview {
  sandboxId: string;
  port: number;
  path: string;
  title: string;
}

let current: OpenPreview | null = null;
const listeners = new Set<() => void>();

export function showPreview(next: OpenPreview | null): void {
  current = next;
  for (const notify of listeners) notify();
}

export function useOpenPreview(): OpenPreview | null {
  return useSyncExternalStore(
    (notify) => {
      listeners.add(notify);
      return () => listeners.delete(notify);
    },
    () => current,
  );
}
