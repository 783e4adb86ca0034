import { Button } from "@/ui/button";
import type { ConnectionState } from "./connection";

/** The state of the connection. Visible only if something is wrong or the shell has ended; screen readers get every change. */
export function StateLine({
  state,
  onNew,
  onRetry,
}: {
  state: ConnectionState;
  onNew: () => void;
  onRetry: () => void;
}) {
  return (
    <div aria-live="polite" className="shrink-0">
      {state.kind === "interrupted" && (
        <p className="border-b bg-warn-soft px-3 py-1 text-xs text-warn">
          Connection interrupted. Reconnecting; the shell keeps running.
        </p>
      )}
      {state.kind === "ended" && (
        <div className="flex flex-wrap items-center gap-2 border-b bg-sunken px-3 py-1 text-xs text-soft">
          <span className="mr-auto">
            The shell exited{state.exitCode === null ? "" : ` with code ${state.exitCode}`}.
          </span>
          <Button size="sm" onClick={onNew}>
            New shell
          </Button>
        </div>
      )}
      {state.kind === "failed" && (
        <div className="flex flex-wrap items-center gap-2 border-b bg-bad-soft px-3 py-1 text-xs text-bad">
          <span className="mr-auto">{state.reason}</span>
          <Button size="sm" onClick={onRetry}>
            Retry
          </Button>
        </div>
      )}
      {state.kind === "connecting" && <p className="sr-only">Opening a shell</p>}
      {state.kind === "open" && <p className="sr-only">The shell is open</p>}
    </div>
  );
}
