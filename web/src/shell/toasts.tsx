import { useEffect, useSyncExternalStore } from "react";
import { Toaster, useSonner } from "sonner";
import { useTheme } from "@/lib/theme";

const wideScreen = matchMedia("(min-width: 640px)");

function subscribe(notify: () => void): () => void {
  wideScreen.addEventListener("change", notify);
  return () => wideScreen.removeEventListener("change", notify);
}

const OFFSET = 8;

/**
 * Toasts. On a phone they are at the top, because the navigation and the Save bar are at the bottom. The page leaves room for them
 * (`--toasts`), so that they cover no title and no button.
 */
export function Toasts() {
  const [theme] = useTheme();
  const wide = useSyncExternalStore(subscribe, () => wideScreen.matches);
  const { toasts } = useSonner();
  // biome-ignore lint/correctness/useExhaustiveDependencies: measure again when the toasts change
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
