import { useSyncExternalStore } from "react";
import { Toaster } from "sonner";
import { useTheme } from "@/lib/theme";

const desk = matchMedia("(min-width: 640px)");

function subscribe(notify: () => void): () => void {
  desk.addEventListener("change", notify);
  return () => desk.removeEventListener("change", notify);
}

/** On a phone they come from above: below are the places to go to, and what saves a form. */
export function Toasts() {
  const [theme] = useTheme();
  const wide = useSyncExternalStore(subscribe, () => desk.matches);
  return <Toaster theme={theme} position={wide ? "bottom-right" : "top-center"} closeButton visibleToasts={4} />;
}
