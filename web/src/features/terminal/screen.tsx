import { type Ref, useEffect, useImperativeHandle, useRef } from "react";
import { useTheme } from "@/lib/theme";
import { copyText } from "@/ui/copy-text";
import { toast } from "@/ui/toast";
import { type ConnectionState, TerminalConnection } from "./connection";
import type { ArrowKey } from "./touch-keys";
import { colours, makeScreen, type Screen, searchColours } from "./xterm";

export interface ScreenHandle {
  find: (text: string, back: boolean) => void;
  clearFind: () => void;
  copy: () => void;
  paste: () => void;
  focus: () => void;
  /** Send text as if it was typed. */
  type: (text: string) => void;
  pressArrow: (key: ArrowKey) => void;
}

interface Props {
  ref: Ref<ScreenHandle>;
  sandboxId: string;
  /** The shell to join; undefined opens a new one. */
  terminalId: string | undefined;
  fontSize: number;
  screenReader: boolean;
  onState: (state: ConnectionState) => void;
  onOpened: (terminalId: string) => void;
  onFound: (place: number, total: number) => void;
  onSearch: () => void;
  /** Called when the user leaves the terminal with the keyboard. */
  onLeave: () => void;
}

/** The screen of one shell. Use another key for another shell. */
export default function TerminalScreen(props: Props) {
  const { ref, sandboxId, terminalId, fontSize, screenReader } = props;
  const box = useRef<HTMLDivElement>(null);
  const screen = useRef<Screen | null>(null);
  const latest = useRef(props);
  latest.current = props;
  const [theme] = useTheme();

  // biome-ignore lint/correctness/useExhaustiveDependencies: one screen per shell; other changes are applied below
  useEffect(() => {
    const created = makeScreen(fontSize, screenReader);
    const { terminal, fit, search } = created;
    screen.current = created;
    terminal.open(box.current as HTMLElement);
    fit.fit();
    let replaying = false; // replayed output may contain terminal queries, which must not be answered again
    const link = new TerminalConnection(sandboxId, terminalId, {
      state: (state) => latest.current.onState(state),
      size: () => ({ cols: terminal.cols, rows: terminal.rows }),
      opened: (id, again) => {
        if (again) {
          terminal.reset();
          replaying = true;
          setTimeout(() => {
            replaying = false;
          }, 500); // a shell without output has nothing to replay
        }
        latest.current.onOpened(id);
      },
      data: (bytes) =>
        terminal.write(bytes, () => {
          replaying = false;
        }),
    });
    const encoder = new TextEncoder();
    terminal.onData((text) => !replaying && link.send(encoder.encode(text)));
    terminal.onBinary((text) => link.send(Uint8Array.from(text, (character) => character.charCodeAt(0))));
    terminal.onResize(({ cols, rows }) => link.resize(cols, rows));
    search.onDidChangeResults(({ resultIndex, resultCount }) => latest.current.onFound(resultIndex + 1, resultCount));
    terminal.attachCustomKeyEventHandler(
      (event) => !(event.type === "keydown" && shortcut(event, terminal, latest.current)),
    );
    let frame = 0;
    const observer = new ResizeObserver(() => {
      cancelAnimationFrame(frame);
      frame = requestAnimationFrame(() => fit.fit());
    });
    observer.observe(box.current as HTMLElement);
    void link.start();
    const focusing = setTimeout(() => terminal.focus()); // after the click on the tab, which takes the focus
    return () => {
      clearTimeout(focusing);
      observer.disconnect();
      cancelAnimationFrame(frame);
      link.stop();
      terminal.dispose();
      screen.current = null;
    };
  }, [sandboxId, terminalId]);

  useEffect(() => {
    if (!screen.current) return;
    screen.current.terminal.options.fontSize = fontSize;
    screen.current.fit.fit();
  }, [fontSize]);
  useEffect(() => {
    if (screen.current) screen.current.terminal.options.screenReaderMode = screenReader;
  }, [screenReader]);
  useEffect(() => {
    // the page's colours change in an effect that runs after this one
    const frame = requestAnimationFrame(() => {
      if (screen.current && theme) screen.current.terminal.options.theme = colours();
    });
    return () => cancelAnimationFrame(frame);
  }, [theme]);

  useImperativeHandle(ref, () => ({
    find: (text, back) => {
      const options = { decorations: searchColours(), incremental: false };
      if (back) screen.current?.search.findPrevious(text, options);
      else screen.current?.search.findNext(text, options);
    },
    clearFind: () => screen.current?.search.clearDecorations(),
    copy: () => screen.current && void copy(screen.current.terminal),
    paste: () => screen.current && void paste(screen.current.terminal),
    focus: () => screen.current?.terminal.focus(),
    type: (text) => screen.current?.terminal.input(text),
    pressArrow: (key) => screen.current && pressArrow(screen.current.terminal, key),
  }));

  return (
    <div ref={box} data-testid="terminal" className="min-h-0 min-w-0 flex-1 overflow-hidden bg-surface py-1 pl-2" />
  );
}

type Terminal = Screen["terminal"];

/** Handle keyboard shortcuts of the page. Return whether the key is handled and must not reach the shell. */
function shortcut(event: KeyboardEvent, terminal: Terminal, props: Props): boolean {
  if (!(event.ctrlKey || event.metaKey) || !event.shiftKey) return false;
  const key = event.key.toLowerCase();
  if (key === "f") props.onSearch();
  else if (key === "l") props.onLeave();
  else if (key === "c") void copy(terminal);
  else return false; // Ctrl+Shift+V is the browser's paste, which the terminal handles
  event.preventDefault();
  return true;
}

const ARROW_LETTERS: Record<ArrowKey, string> = { up: "A", down: "B", right: "C", left: "D" };

function pressArrow(terminal: Terminal, key: ArrowKey): void {
  terminal.input(`\x1b${terminal.modes.applicationCursorKeysMode ? "O" : "["}${ARROW_LETTERS[key]}`);
}

async function copy(terminal: Terminal): Promise<void> {
  const text = terminal.getSelection();
  if (!text) return void toast("No text is selected in the terminal.");
  await copyText(text);
}

/** Paste from the clipboard. With bracketed paste, line breaks in the text run nothing. */
async function paste(terminal: Terminal): Promise<void> {
  try {
    terminal.paste(await navigator.clipboard.readText());
    terminal.focus();
  } catch {
    toast.error("The browser does not allow this page to read the clipboard.", {
      description: "Press Ctrl+Shift+V in the terminal instead.",
    });
  }
}
