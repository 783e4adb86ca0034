import { useEffect, useState } from "react";
import { useLiveState } from "@/live/context";

const DELAY_MS = 1500;

/** Warn that the page may be out of date. Interruptions shorter than `DELAY_MS` are not shown. */
export function LiveLine() {
  const state = useLiveState();
  const [shown, setShown] = useState(false);
  const away = state === "interrupted";
  useEffect(() => {
    if (!away) {
      setShown(false);
      return;
    }
    const timer = setTimeout(() => setShown(true), DELAY_MS);
    return () => clearTimeout(timer);
  }, [away]);
  return (
    <div role="status" aria-live="polite" data-live={state}>
      {shown && (
        <p className="bg-warn-soft px-3 py-1 text-center text-xs text-warn">
          Live updates are interrupted. Reconnecting; missed updates are loaded afterwards.
        </p>
      )}
    </div>
  );
}
