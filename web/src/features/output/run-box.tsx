import { Play } from "lucide-react";
import { useRef, useState } from "react";
import { useExecuteCommand } from "@/api/queries/commands";
import { useCheckoutFolder } from "@/api/queries/git";
import { useSandbox } from "@/api/queries/sandboxes";
import type { Command } from "@/api/types";
import { Button } from "@/ui/button";
import { Input, Select } from "@/ui/field";
import { showError } from "@/ui/toast";

const TIMES = [
  { value: "300", label: "5 min" },
  { value: "3600", label: "1 hour" },
  { value: "28800", label: "8 hours" },
];

/** Run a command in the sandbox. The up arrow recalls earlier commands. */
export function RunBox({
  sandboxId,
  checkedOut,
  past,
  onStarted,
}: {
  sandboxId: string;
  /** False while the repository is still being checked out. */
  checkedOut: boolean;
  past: Command[];
  onStarted: (id: string) => void;
}) {
  const [text, setText] = useState("");
  const [timeout, setTimeout] = useState("300");
  const [recalled, setRecalled] = useState(-1);
  const draft = useRef("");
  const sandbox = useSandbox(sandboxId);
  const folder = useCheckoutFolder(sandboxId, { enabled: checkedOut });
  const run = useExecuteCommand({
    onSuccess: (command) => {
      setText("");
      setRecalled(-1);
      onStarted(command.id);
    },
    onError: showError("Could not run the command"),
  });
  const status = sandbox.data?.status;
  const gone = status === "destroyed" || status === "error";
  const lines = [...new Set(past.map((command) => command.command))].filter((command) => !command.includes("\n"));

  const recall = (by: 1 | -1) => {
    const next = Math.max(-1, Math.min(lines.length - 1, recalled + by));
    if (recalled === -1) draft.current = text;
    setRecalled(next);
    setText(next === -1 ? draft.current : (lines[next] as string));
  };

  if (gone)
    return (
      <p className="shrink-0 border-t px-3 py-2 text-xs text-soft">
        This sandbox {status === "error" ? "has failed" : "was deleted"}. You can no longer run commands in it.
      </p>
    );
  return (
    <form
      className="flex shrink-0 flex-col gap-1 border-t bg-surface px-2 py-2"
      onSubmit={(event) => {
        event.preventDefault();
        if (text.trim() && !run.isPending)
          run.mutate({ sandboxId, command: text, cwd: folder.data ?? null, timeout: Number(timeout) });
      }}
    >
      <div className="flex items-center gap-1.5">
        <Input
          aria-label="Command to run"
          placeholder="Run a command"
          spellCheck={false}
          autoCapitalize="off"
          autoComplete="off"
          className="min-w-0 flex-1 font-mono !text-xs"
          value={text}
          onChange={(event) => {
            setText(event.target.value);
            setRecalled(-1);
          }}
          onKeyDown={(event) => {
            if (event.key !== "ArrowUp" && event.key !== "ArrowDown") return;
            event.preventDefault();
            recall(event.key === "ArrowUp" ? 1 : -1);
          }}
        />
        <Select label="Timeout" value={timeout} onChange={setTimeout} choices={TIMES} className="!w-24 shrink-0" />
        <Button type="submit" look="primary" busy={run.isPending} disabled={!text.trim()}>
          {!run.isPending && <Play className="size-3.5" aria-hidden />}
          Run
        </Button>
      </div>
      <p className="truncate px-1 text-2xs text-faint">
        Working directory: <code className="font-mono">{folder.data ?? "~"}</code>
        {status === "paused" && ". The sandbox is paused: running a command resumes it"}
      </p>
    </form>
  );
}
