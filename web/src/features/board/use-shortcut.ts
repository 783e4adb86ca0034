import { useEffect, useRef } from "react";

/** A single key, where nobody is writing and nothing lies above the page. */
export function useShortcut(key: string, act: () => void): void {
  const latest = useRef(act);
  latest.current = act;
  useEffect(() => {
    const listen = (event: KeyboardEvent) => {
      if (event.key !== key || event.ctrlKey || event.metaKey || event.altKey || event.repeat || event.defaultPrevented)
        return;
      const target = event.target as HTMLElement | null;
      if (
        target?.closest("input, textarea, select, [contenteditable=true], [role=dialog], [role=menu], [role=listbox]")
      )
        return;
      event.preventDefault();
      latest.current();
    };
    addEventListener("keydown", listen);
    return () => removeEventListener("keydown", listen);
  }, [key]);
}
