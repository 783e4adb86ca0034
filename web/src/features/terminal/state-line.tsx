import { Button } from "@/ui/button";
import type { LinkState } from "./connection";

/** How it stands with the connection, where that is worth a line. */
export function StateLine({ state, onNew, onAgain }: { state: LinkState; onNew: () => void; onAgain: () => void }) {
  return (
    <div aria-live="polite" className="shrink-0">
      {state.kind === "interrupted" && (
        <p className="border-b bg-warn-soft px-3 py-1 text-xs text-warn">
          The connection is interrupted; trying again. The shell goes on meanwhile.
        </p>
      )}
      {state.kind === "ended" && (
        <div className="flex flex-wrap items-center gap-2 border-b bg-sunken px-3 py-1 text-xs text-soft">
          <span className="mr-auto">
            The shell has ended{state.exitCode === null ? "" : ` with exit code ${state.exitCode}`}.
          </span>
          <Button size="sm" onClick={onNew}>
            New shell
          </Button>
        </div>
      )}
      {state.kind === "failed" && (
        <div className="flex flex-wrap items-center gap-2 border-b bg-bad-soft px-3 py-1 text-xs text-bad">
          <span className="mr-auto">{state.reason}</span>
          <Button size="sm" onClick={onAgain}>
            Try again
          </Button>
        </div>
      )}
      {state.kind === "connecting" && <p className="sr-only">Opening a shell</p>}
      {state.kind === "open" && <p className="sr-only">The shell is open</p>}
    </div>
  );
}
