import { useEffect, useState } from "react";
import { useLiveState } from "@/live/context";

const PATIENCE_MS = 1500;

/** Says when what is shown may be old. A hiccup shorter than a moment is nobody's business. */
export function LiveLine() {
  const state = useLiveState();
  const [shown, setShown] = useState(false);
  const away = state === "interrupted";
  useEffect(() => {
    if (!away) {
      setShown(false);
      return;
    }
    const timer = setTimeout(() => setShown(true), PATIENCE_MS);
    return () => clearTimeout(timer);
  }, [away]);
  return (
    <div role="status" aria-live="polite" data-live={state}>
      {shown && (
        <p className="bg-warn-soft px-3 py-1 text-center text-xs text-warn">
          Live updates are interrupted. Trying again; nothing is lost meanwhile.
        </p>
      )}
    </div>
  );
}
