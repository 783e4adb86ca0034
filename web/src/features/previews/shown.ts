/** Which preview is shown beside the page, if any: one for the whole application, so that it stays while one goes from page to page. */
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
