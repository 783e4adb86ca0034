import { lazy, Suspense, useEffect, useState } from "react";
import { onPalette } from "./palette-state";

const Commands = lazy(() => import("./palette-commands"));

/** Ctrl+K: everything that can be gone to or done, by its name. Loaded when first opened. */
export function Palette() {
  const [open, setOpen] = useState(false);
  const [used, setUsed] = useState(false);
  useEffect(() => {
    const show = () => {
      setUsed(true);
      setOpen(true);
    };
    const key = (event: KeyboardEvent) => {
      if ((event.ctrlKey || event.metaKey) && !event.shiftKey && !event.altKey && event.key.toLowerCase() === "k") {
        event.preventDefault();
        show();
      }
    };
    addEventListener("keydown", key);
    const forget = onPalette(show);
    return () => {
      removeEventListener("keydown", key);
      forget();
    };
  }, []);
  if (!used) return null;
  return (
    <Suspense fallback={null}>
      <Commands open={open} onOpenChange={setOpen} />
    </Suspense>
  );
}
