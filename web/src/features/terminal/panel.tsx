import { lazy, Suspense, useCallback, useRef, useState } from "react";
import { useTerminals } from "@/api/queries/sandboxes";
import { useRefreshTerminals } from "@/api/refresh";
import { LogFind } from "@/features/output/log-find";
import { useStored } from "@/lib/stored";
import { Kbd } from "@/ui/badge";
import { Loaded, Loading } from "@/ui/states";
import { TerminalBar } from "./bar";
import type { ConnectionState } from "./connection";
import { rememberedShell, rememberShell } from "./remembered-shell";
import { ResumePrompt } from "./resume-prompt";
import type { ScreenHandle } from "./screen";
import { StateLine } from "./state-line";
import { TouchKeys } from "./touch-keys";

const TerminalScreen = lazy(() => import("./screen"));

/** An interactive shell. It survives a page reload, and other open shells can be joined. */
export function TerminalPanel({ sandboxId }: { sandboxId: string }) {
  const shells = useTerminals(sandboxId);
  return (
    <ResumePrompt
      sandboxId={sandboxId}
      action="Resume and open a shell"
      explanation="Its files are kept. Opening a shell resumes the sandbox and keeps it running while the shell is shown."
    >
      <Loaded query={shells}>
        {(open) => <Shells key={sandboxId} sandboxId={sandboxId} open={open.map((shell) => shell.id)} />}
      </Loaded>
    </ResumePrompt>
  );
}

interface Chosen {
  /** Incremented for each selection: selecting the same shell again creates a new screen. */
  screen: number;
  id: string | undefined;
}

function Shells({ sandboxId, open }: { sandboxId: string; open: string[] }) {
  const refreshShells = useRefreshTerminals(sandboxId);
  const [chosen, setChosen] = useState<Chosen>(() => ({
    screen: 0,
    id: open.find((id) => id === rememberedShell(sandboxId)) ?? open.at(-1),
  }));
  const [current, setCurrent] = useState<string | undefined>(chosen.id);
  const [state, setState] = useState<ConnectionState>({ kind: "connecting" });
  const [fontSize, setFontSize] = useStored("terminal.font", 13);
  const [screenReader, setScreenReader] = useStored("terminal.reader", false);
  const [finding, setFinding] = useState(false);
  const [query, setQuery] = useState("");
  const [found, setFound] = useState({ place: 0, total: 0 });
  const screen = useRef<ScreenHandle>(null);
  const bar = useRef<HTMLDivElement>(null);

  const choose = useCallback(
    (id: string | undefined) => {
      rememberShell(sandboxId, id);
      setCurrent(id);
      setState({ kind: "connecting" });
      setChosen((before) => ({ screen: before.screen + 1, id }));
    },
    [sandboxId],
  );
  const handleState = (next: ConnectionState) => {
    setState(next);
    if (next.kind !== "ended") return;
    rememberShell(sandboxId, undefined);
    void refreshShells();
  };
  const handleOpened = (id: string) => {
    rememberShell(sandboxId, id);
    setCurrent(id);
    void refreshShells();
  };
  const find = (text: string, back = false) => (text ? screen.current?.find(text, back) : screen.current?.clearFind());
  const close = () => {
    setFinding(false);
    screen.current?.clearFind();
    screen.current?.focus();
  };

  return (
    <div className="flex min-h-0 flex-1 flex-col">
      <TerminalBar
        ref={bar}
        sandboxId={sandboxId}
        current={current}
        onChoose={choose}
        fontSize={fontSize}
        onFontSize={setFontSize}
        screenReader={screenReader}
        onScreenReader={setScreenReader}
        onFind={() => (finding ? close() : setFinding(true))}
        onCopy={() => screen.current?.copy()}
        onPaste={() => screen.current?.paste()}
      />
      {finding && (
        <LogFind
          label="Search terminal"
          query={query}
          onQuery={(text) => {
            setQuery(text);
            find(text);
          }}
          place={found.place}
          total={found.total}
          more={false}
          onStep={(by) => find(query, by < 0)}
          onClose={close}
        />
      )}
      <StateLine state={state} onNew={() => choose(undefined)} onRetry={() => choose(current)} />
      <Suspense fallback={<Loading label="Loading the terminal" />}>
        <TerminalScreen
          key={chosen.screen}
          ref={screen}
          sandboxId={sandboxId}
          terminalId={chosen.id}
          fontSize={fontSize}
          screenReader={screenReader}
          onState={handleState}
          onOpened={handleOpened}
          onFound={(place, total) => setFound({ place, total })}
          onSearch={() => setFinding(true)}
          onLeave={() => bar.current?.querySelector<HTMLElement>("button")?.focus()}
        />
      </Suspense>
      <TouchKeys onText={(text) => screen.current?.type(text)} onArrow={(key) => screen.current?.pressArrow(key)} />
      <p className="hidden shrink-0 items-center gap-1 border-t px-3 py-1 text-2xs text-faint sm:flex">
        <Kbd>Ctrl+Shift+L</Kbd> leaves the terminal, <Kbd>Ctrl+Shift+F</Kbd> searches, <Kbd>Ctrl+Shift+C</Kbd> and{" "}
        <Kbd>Ctrl+Shift+V</Kbd> copy and paste
      </p>
    </div>
  );
}
