import { SquareTerminal } from "lucide-react";
import { useCommand, useCommandPages } from "@/api/queries/commands";
import type { Command } from "@/api/types";
import { Select } from "@/ui/field";
import { Empty, Loaded, Loading } from "@/ui/states";
import { CommandList } from "./command-list";
import { CommandOutput } from "./command-output";
import { commandStatus, isOver } from "./commands";
import { RunBox } from "./run-box";

const NEWEST = "newest";

/** The commands of a sandbox with their live output. `at` is the selected command; by default the running or the latest one. */
export function OutputPanel({
  sandboxId,
  checkedOut = true,
  at,
  onAt,
}: {
  sandboxId: string;
  /** False while the repository is still being checked out. */
  checkedOut?: boolean;
  at?: string | undefined;
  onAt: (id: string | undefined) => void;
}) {
  const pages = useCommandPages(sandboxId);
  const known = pages.data?.pages.flatMap((page) => page.items) ?? [];
  const listed = at
    ? known.find((command) => command.id === at)
    : (known.find((command) => !isOver(command)) ?? known[0]);
  const missing = at !== undefined && pages.data !== undefined && !listed;
  const other = useCommand(sandboxId, at ?? "", { enabled: missing });
  const chosen = listed ?? (missing ? other.data : undefined);
  const list = (
    <CommandList
      commands={known}
      chosen={chosen?.id}
      onChoose={onAt}
      hasMore={pages.hasNextPage}
      onLoadMore={() => pages.fetchNextPage()}
      loading={pages.isFetchingNextPage}
    />
  );
  return (
    <div className="flex min-h-0 flex-1 flex-col">
      <Loaded query={pages}>
        {() => (
          <div className="flex min-h-0 flex-1 flex-col md:flex-row">
            {known.length > 0 && (
              <div className="hidden w-64 shrink-0 flex-col border-r bg-surface md:flex">{list}</div>
            )}
            {known.length > 0 && (
              <div className="shrink-0 border-b px-2 py-1.5 md:hidden">
                <Select
                  label="Command"
                  value={at ?? NEWEST}
                  onChange={(value) => onAt(value === NEWEST ? undefined : value)}
                  choices={[
                    { value: NEWEST, label: "Running or latest command" },
                    ...choices(known, missing ? chosen : undefined),
                  ]}
                />
              </div>
            )}
            <div className="flex min-h-0 min-w-0 flex-1 flex-col">
              {chosen ? (
                <CommandOutput key={chosen.id} command={chosen} sandboxId={sandboxId} />
              ) : missing ? (
                <Loaded query={other}>{() => <Loading />}</Loaded>
              ) : (
                <div className="flex-1">
                  <Empty title="No commands yet" icon={<SquareTerminal className="size-6" aria-hidden />}>
                    Commands run outside the agent, such as the verify command or your own commands, appear here. The
                    agent's commands are in the conversation.
                  </Empty>
                </div>
              )}
              <RunBox sandboxId={sandboxId} checkedOut={checkedOut} past={known} onStarted={onAt} />
            </div>
          </div>
        )}
      </Loaded>
    </div>
  );
}

function choices(known: Command[], also: Command | undefined) {
  return (also ? [...known, also] : known).map((command) => ({
    value: command.id,
    label: command.command.slice(0, 60),
    detail: commandStatus(command).text,
  }));
}
