/** The open preview, if any. One for the whole application, so that it stays open during navigation. */
import { useSyncExternalStore } from "react";

export interface Shown {
  sandboxId: string;
  port: number;
  path: string;
  title: string;
}

let shown: Shown | null = null;
const readers = new Set<() => void>();

export function showPreview(next: Shown | null): void {
  shown = next;
  for (const notify of readers) notify();
}

export function useShownPreview(): Shown | null {
  return useSyncExternalStore(
    (notify) => {
      readers.add(notify);
      return () => readers.delete(notify);
    },
    () => shown,
  );
}
