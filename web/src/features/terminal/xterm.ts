/** The xterm.js terminal, in its own module so that it is loaded only when shown. */
import { FitAddon } from "@xterm/addon-fit";
import { SearchAddon } from "@xterm/addon-search";
import { WebLinksAddon } from "@xterm/addon-web-links";
import { type ITheme, Terminal } from "@xterm/xterm";
import "@xterm/xterm/css/xterm.css";
import "@/ui/ansi.css";
import { sanitizeHref } from "@/lib/links";

export interface Screen {
  terminal: Terminal;
  fit: FitAddon;
  search: SearchAddon;
}

function openLink(_event: MouseEvent, address: string): void {
  const safe = sanitizeHref(address);
  if (safe) window.open(safe, "_blank", "noopener,noreferrer");
}

export function makeScreen(fontSize: number, screenReaderMode: boolean): Screen {
  const terminal = new Terminal({
    allowProposedApi: true, // needed to highlight search matches
    cursorBlink: true,
    fontFamily: readVariable("--font-mono") || "monospace",
    fontSize,
    lineHeight: 1.15,
    linkHandler: { activate: openLink, allowNonHttpProtocols: false },
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
  terminal.loadAddon(new WebLinksAddon(openLink));
  return { terminal, fit, search };
}

/** Return the value of a CSS variable of the page. */
function readVariable(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Return the page's current colours. */
export function colours(): ITheme {
  const ansi = (name: string) => readVariable(`--log-${name}`);
  const dark = document.documentElement.dataset.theme === "dark";
  const [black, white] = dark
    ? [readVariable("--line-strong"), readVariable("--text")]
    : [readVariable("--text"), readVariable("--line-strong")];
  return {
    background: readVariable("--surface"),
    foreground: readVariable("--text"),
    cursor: readVariable("--accent"),
    cursorAccent: readVariable("--surface"),
    selectionBackground: readVariable("--info-soft"),
    black,
    white,
    red: ansi("red"),
    green: ansi("green"),
    yellow: ansi("yellow"),
    blue: ansi("blue"),
    magenta: ansi("magenta"),
    cyan: ansi("cyan"),
    brightBlack: ansi("grey"),
    brightRed: ansi("red"),
    brightGreen: ansi("green"),
    brightYellow: ansi("yellow"),
    brightBlue: ansi("blue"),
    brightMagenta: ansi("magenta"),
    brightCyan: ansi("cyan"),
    brightWhite: white,
  };
}

/** Return the colours of search matches. */
export const searchColours = () => ({
  matchBackground: readVariable("--log-found"),
  activeMatchBackground: readVariable("--log-found-now"),
  matchOverviewRuler: readVariable("--log-found"),
  activeMatchColorOverviewRuler: readVariable("--log-found-now"),
});
