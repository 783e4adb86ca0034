import clsx from "clsx";
import type { Command } from "@/api/types";
import { formatDuration } from "@/lib/format";
import { Dot } from "@/ui/badge";
import { Button } from "@/ui/button";
import { Ago, Elapsed } from "@/ui/time";
import { commandStatus, isOver } from "./commands";

interface Props {
  commands: Command[];
  chosen: string | undefined;
  onChoose: (id: string) => void;
  hasMore: boolean;
  onLoadMore: () => void;
  loading: boolean;
}

/** The commands of a sandbox, newest first. */
export function CommandList({ commands, chosen, onChoose, hasMore, onLoadMore, loading }: Props) {
  return (
    <nav aria-label="Commands" className="min-h-0 overflow-y-auto">
      <ul>
        {commands.map((command) => {
          const status = commandStatus(command);
          return (
            <li key={command.id}>
              <button
                type="button"
                aria-current={command.id === chosen}
                onClick={() => onChoose(command.id)}
                className={clsx(
                  "flex w-full flex-col gap-0.5 border-b px-3 py-1.5 text-left outline-offset-[-2px] hover:bg-hover",
                  command.id === chosen && "bg-sunken",
                )}
              >
                <span className="line-clamp-2 w-full font-mono text-xs break-all" title={command.command.slice(0, 500)}>
                  {command.command.slice(0, 300)}
                </span>
                <span className="flex w-full items-center gap-1.5 text-2xs text-soft tabular-nums">
                  <Dot tone={status.tone} pulse={status.busy ?? false} />
                  {status.text}
                  <CommandDuration command={command} />
                  <Ago at={command.startedAt} className="ml-auto text-faint" />
                </span>
              </button>
            </li>
          );
        })}
      </ul>
      {hasMore && (
        <div className="p-2 text-center">
          <Button size="sm" look="ghost" busy={loading} onClick={onLoadMore}>
            Load older commands
          </Button>
        </div>
      )}
    </nav>
  );
}

/** How long a command ran, or has been running. Nothing if that is unknown. */
export function CommandDuration({ command }: { command: Command }) {
  if (!isOver(command)) return <Elapsed from={command.startedAt} className="text-faint" />;
  if (command.durationMs === null) return null;
  const ms = command.durationMs;
  return <span className="text-faint">{ms < 1000 ? `${ms} ms` : formatDuration(ms / 1000)}</span>;
}
