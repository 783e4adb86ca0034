/** Message drafts, one per session: kept in this browser until they are sent. Other panels can append to them. */
import { useCallback, useSyncExternalStore } from "react";

const changed = new EventTarget();
const drafts = new Map<string, string>();
const key = (sessionId: string) => `sandyard.draft.${sessionId}`;

function read(sessionId: string): string {
  const known = drafts.get(sessionId);
  if (known !== undefined) return known;
  let text = "";
  try {
    text = localStorage.getItem(key(sessionId)) ?? "";
  } catch {
    // Storage is blocked: the draft lasts as long as the page.
  }
  drafts.set(sessionId, text);
  return text;
}

function write(sessionId: string, text: string): void {
  drafts.set(sessionId, text);
  try {
    if (text) localStorage.setItem(key(sessionId), text);
    else localStorage.removeItem(key(sessionId));
  } catch {
    // Storage is full or blocked: the draft lasts as long as the page.
  }
  changed.dispatchEvent(new Event(sessionId));
}

/** Return the draft of a session and its setter. Changes made in another browser tab are picked up. */
export function useDraft(sessionId: string): [string, (text: string) => void] {
  const subscribe = useCallback(
    (notify: () => void) => {
      const other = (event: StorageEvent) => {
        if (event.key !== key(sessionId)) return;
        drafts.set(sessionId, event.newValue ?? "");
        notify();
      };
      addEventListener("storage", other);
      changed.addEventListener(sessionId, notify);
      return () => {
        removeEventListener("storage", other);
        changed.removeEventListener(sessionId, notify);
      };
    },
    [sessionId],
  );
  const text = useSyncExternalStore(subscribe, () => read(sessionId));
  return [text, useCallback((value: string) => write(sessionId, value), [sessionId])];
}

/** Append a paragraph to the draft, such as a comment on a line of the diff. The composer shows it immediately. */
export function appendToDraft(sessionId: string, text: string): void {
  const before = read(sessionId);
  write(sessionId, before.trim() ? `${before.replace(/\s+$/, "")}\n\n${text}` : text);
}
