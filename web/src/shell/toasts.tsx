import { useEffect, useSyncExternalStore } from "react";
import { Toaster, useSonner } from "sonner";
import { useTheme } from "@/lib/theme";

const desk = matchMedia("(min-width: 640px)");

function subscribe(notify: () => void): () => void {
  desk.addEventListener("change", notify);
  return () => desk.removeEventListener("change", notify);
}

const OFFSET = 8;

/** On a phone they come from above: below are the places to go to, and what saves a form. The page makes room for them, by `--toasts`:
 * they cover no title and no button. */
export function Toasts() {
  const [theme] = useTheme();
  const wide = useSyncExternalStore(subscribe, () => desk.matches);
  const { toasts } = useSonner();
  // biome-ignore lint/correctness/useExhaustiveDependencies: whenever others are shown
  useEffect(() => {
    const measured = requestAnimationFrame(() => {
      const front = document.querySelector<HTMLElement>("[data-sonner-toast][data-front=true][data-removed=false]");
      const height = front && !wide ? front.offsetHeight + 2 * OFFSET : 0;
      document.documentElement.style.setProperty("--toasts", `${height}px`);
    });
    return () => cancelAnimationFrame(measured);
  }, [toasts, wide]);
  return (
    <Toaster
      theme={theme}
      position={wide ? "bottom-right" : "top-center"}
      closeButton
      visibleToasts={wide ? 4 : 1}
      mobileOffset={OFFSET}
    />
  );
}
