import { useCallback, useSyncExternalStore } from "react";

const changed = new EventTarget();

/**
 * A preference in local storage, shared by all tabs of this browser. Return its value, a setter, and an updater that receives the current
 * value. If local storage is full or forbidden, changes are ignored.
 */
export function useStored<T>(name: string, initial: T): [T, (value: T) => void, (next: (now: T) => T) => void] {
  const key = `sandyard.${name}`;
  const text = useSyncExternalStore(
    useCallback(
      (notify) => {
        const other = (event: StorageEvent) => event.key === key && notify();
        addEventListener("storage", other);
        changed.addEventListener(key, notify);
        return () => {
          removeEventListener("storage", other);
          changed.removeEventListener(key, notify);
        };
      },
      [key],
    ),
    () => localStorage.getItem(key),
  );
  const set = useCallback(
    (value: T) => {
      try {
        localStorage.setItem(key, typeof value === "string" ? value : JSON.stringify(value));
      } catch {
        return; // full or forbidden
      }
      changed.dispatchEvent(new Event(key));
    },
    [key],
  );
  return [read(text, initial), set, (next) => set(next(read(localStorage.getItem(key), initial)))];
}

function read<T>(text: string | null, initial: T): T {
  if (text === null) return initial;
  if (typeof initial === "string") return text as T;
  try {
    return JSON.parse(text) as T;
  } catch {
    return initial;
  }
}
