/** The xterm.js terminal, in its own module so that it is loaded only when shown. */
import { FitAddon } from "@xterm/addon-fit";
import { SearchAddon } from "@xterm/addon-search";
import { WebLinksAddon } from "@xterm/addon-web-links";
import { type ITheme, Terminal } from "@xterm/xterm";
import "@xterm/xterm/css/xterm.css";
import "@/ui/ansi.css";
import { safeHref } from "@/lib/links";

export interface Screen {
  terminal: Terminal;
  fit: FitAddon;
  search: SearchAddon;
}

function open(_event: MouseEvent, address: string): void {
  const safe = safeHref(address);
  if (safe) window.open(safe, "_blank", "noopener,noreferrer");
}

export function makeScreen(fontSize: number, screenReaderMode: boolean): Screen {
  const terminal = new Terminal({
    allowProposedApi: true, // needed to highlight search matches
    cursorBlink: true,
    fontFamily: css("--font-mono") || "monospace",
    fontSize,
    lineHeight: 1.15,
    linkHandler: { activate: open, allowNonHttpProtocols: false },
    minimumContrastRatio: 4.5,
    rightClickSelectsWord: false,
    screenReaderMode,
    scrollback: 10_000,
    theme: colours(),
  });
  const fit = new FitAddon();
  const search = new SearchAddon();
  terminal.loadAddon(fit);
  terminal.loadAddon(search);
  terminal.loadAddon(new WebLinksAddon(open));
  return { terminal, fit, search };
}

function css(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Return the page's current colours. */
export function colours(): ITheme {
  const named = (name: string) => css(`--log-${name}`);
  const dark = document.documentElement.dataset.theme === "dark";
  const [black, white] = dark ? [css("--line-strong"), css("--text")] : [css("--text"), css("--line-strong")];
  return {
    background: css("--surface"),
    foreground: css("--text"),
    cursor: css("--accent"),
    cursorAccent: css("--surface"),
    selectionBackground: css("--info-soft"),
    black,
    white,
    red: named("red"),
    green: named("green"),
    yellow: named("yellow"),
    blue: named("blue"),
    magenta: named("magenta"),
    cyan: named("cyan"),
    brightBlack: named("grey"),
    brightRed: named("red"),
    brightGreen: named("green"),
    brightYellow: named("yellow"),
    brightBlue: named("blue"),
    brightMagenta: named("magenta"),
    brightCyan: named("cyan"),
    brightWhite: white,
  };
}

export const MARKS = () => ({
  matchBackground: css("--log-found"),
  activeMatchBackground: css("--log-found-now"),
  matchOverviewRuler: css("--log-found"),
  activeMatchColorOverviewRuler: css("--log-found-now"),
});
