import { useSyncExternalStore } from "react";

const query = matchMedia("(min-width: 1280px)");

function subscribe(notify: () => void): () => void {
  query.addEventListener("change", notify);
  return () => query.removeEventListener("change", notify);
}

/** Return whether there is room for two panels side by side. */
export function useWide(): boolean {
  return useSyncExternalStore(subscribe, () => query.matches);
}
