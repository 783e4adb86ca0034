import { useEffect, useSyncExternalStore } from "react";
import { useStored } from "./stored";

export type Theme = "light" | "dark";
export type ThemeChoice = Theme | "system";

const query = matchMedia("(prefers-color-scheme: dark)");

function subscribe(notify: () => void): () => void {
  query.addEventListener("change", notify);
  return () => query.removeEventListener("change", notify);
}

/** Return the theme in use, the user's choice, and a setter. `theme.js` applies the same choice before the first paint. */
export function useTheme(): [Theme, ThemeChoice, (choice: ThemeChoice) => void] {
  const [stored, store] = useStored("theme", "");
  const dark = useSyncExternalStore(subscribe, () => query.matches);
  const choice: ThemeChoice = stored === "light" || stored === "dark" ? stored : "system";
  const theme: Theme = choice === "system" ? (dark ? "dark" : "light") : choice;
  useEffect(() => {
    document.documentElement.dataset.theme = theme;
  }, [theme]);
  return [theme, choice, (next) => store(next === "system" ? "" : next)];
}
