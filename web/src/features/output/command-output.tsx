import { Square } from "lucide-react";
import { lazy, Suspense, useState } from "react";
import { useKillCommand } from "@/api/queries/commands";
import type { Command } from "@/api/types";
import { formatBytes } from "@/lib/format";
import { Button } from "@/ui/button";
import { ErrorState, Loading } from "@/ui/states";
import { Status } from "@/ui/status";
import { showError } from "@/ui/toast";
import { CommandDuration } from "./command-list";
import { commandStatus, isOver, useLog } from "./commands";
import { DownloadOutput } from "./download";
import { beginning } from "./log-intake";

const LogViewer = lazy(() => import("./log-viewer").then((module) => ({ default: module.LogViewer })));

/** A command with its status and output. */
export function CommandOutput({ command, sandboxId }: { command: Command; sandboxId: string }) {
  const [attempt, setAttempt] = useState(0);
  const log = useLog(command, attempt);
  const kill = useKillCommand({ onError: showError("Could not kill the command") });
  const [skipped] = useState(() => beginning(command)); // As of when reading started.
  const left = skipped.stdout + skipped.stderr;
  return (
    <div className="flex min-h-0 flex-1 flex-col">
      <div className="flex shrink-0 items-center gap-2 border-b bg-surface px-3 py-1.5">
        <code className="max-h-16 min-w-0 flex-1 overflow-y-auto font-mono text-xs break-all whitespace-pre-wrap">
          {command.command.slice(0, 5000)}
        </code>
        <span className="flex shrink-0 items-center gap-2 text-xs tabular-nums" aria-live="polite">
          <span className="hidden sm:inline">
            <CommandDuration command={command} />
          </span>
          <Status status={commandStatus(command)} />
        </span>
        {!isOver(command) && (
          <Button
            size="sm"
            look="danger"
            busy={kill.isPending}
            onClick={() => kill.mutate({ id: command.id, sandboxId })}
          >
            {!kill.isPending && <Square className="size-3" aria-hidden />}
            Kill
          </Button>
        )}
      </div>
      {command.error && (
        <p role="alert" className="shrink-0 border-b bg-bad-soft px-3 py-1 text-xs text-bad">
          {command.error}
        </p>
      )}
      {log?.state === "interrupted" && (
        <p role="status" className="shrink-0 border-b bg-warn-soft px-3 py-1 text-xs text-warn">
          Connection lost. Reconnecting; no output will be lost.
        </p>
      )}
      {log?.state === "failed" ? (
        <ErrorState error={log.error} retry={() => setAttempt((n) => n + 1)} />
      ) : log ? (
        <Suspense fallback={<Loading label="Loading output" />}>
          <LogViewer
            key={command.id}
            store={log.store}
            label={`Output of ${command.command.slice(0, 80)}`}
            live={log.state !== "over"}
            tools={<DownloadOutput command={command} />}
            note={
              left > 0
                ? `The first ${formatBytes(left)} of this output are not shown and not counted as lines. Download the output to see everything.`
                : undefined
            }
            empty={log.state === "over" ? "No output." : log.state === "connecting" ? "" : "No output yet."}
          />
        </Suspense>
      ) : (
        <Loading label="Loading output" />
      )}
    </div>
  );
}
