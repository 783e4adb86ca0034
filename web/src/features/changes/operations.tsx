/** The git operations running in the sandbox, tracked by events, including those started by other users. */
import { CircleAlert, LoaderCircle, X } from "lucide-react";
import { useState } from "react";
import { useGitOperations } from "@/api/queries/git";
import type { PlatformEvent } from "@/api/types";
import { useEvents } from "@/live/context";
import { IconButton } from "@/ui/button";

interface OperationState {
  kind: string;
  position: number | null;
  what: string;
  percent: number | null;
}

const LABELS: Record<string, string> = {
  clone: "Checking out",
  branch: "Creating the branch",
  stage: "Staging",
  commit: "Committing",
  discard: "Discarding",
  push: "Pushing",
  update: "Updating",
  tag: "Tagging",
  checkpoint: "Saving a checkpoint",
  restore: "Restoring",
};

/** Return an operation's state from an event; null if it has ended. */
export function operationState(
  event: Pick<PlatformEvent, "kind" | "data">,
  before: OperationState | undefined,
): OperationState | null {
  const { operation, position, what, percent } = event.data as Record<string, unknown>;
  const kind = typeof operation === "string" ? operation : (before?.kind ?? "");
  switch (event.kind) {
    case "git.queued":
      return { kind, position: typeof position === "number" ? position : null, what: "", percent: null };
    case "git.started":
      return { kind, position: null, what: "", percent: null };
    case "git.progress":
      return {
        kind,
        position: null,
        what: typeof what === "string" ? what : "",
        percent: typeof percent === "number" ? Math.min(100, Math.max(0, percent)) : null,
      };
    default:
      return null;
  }
}

/** Return the running operations by id. Those that started before the subscription are read once. */
export function useRunningOperations(sandboxId: string): [id: string, state: OperationState][] {
  const known = useGitOperations(sandboxId);
  const [reported, setReported] = useState<ReadonlyMap<string, OperationState | null>>(new Map());
  useEvents(
    (event) => {
      const id = (event.data as Record<string, unknown>).operationId;
      if (!event.kind.startsWith("git.") || event.sandboxId !== sandboxId || typeof id !== "string") return;
      setReported((now) => new Map([...now].slice(-50)).set(id, operationState(event, now.get(id) ?? undefined)));
    },
    () => setReported(new Map()),
  );
  const all = new Map<string, OperationState | null>();
  for (const operation of known.data ?? []) {
    if (operation.status === "queued" || operation.status === "running")
      all.set(operation.id, { kind: operation.kind, position: operation.position, what: "", percent: null });
  }
  for (const [id, state] of reported) all.set(id, state);
  return [...all].filter((entry): entry is [string, OperationState] => entry[1] !== null);
}

export function Operations({ sandboxId }: { sandboxId: string }) {
  const running = useRunningOperations(sandboxId);
  return (
    <div aria-live="polite">
      {running.map(([id, one]) => (
        <div key={id} className="flex items-center gap-2 border-b bg-info-soft px-3 py-1 text-xs text-info">
          <LoaderCircle className="size-3.5 shrink-0 animate-spin" aria-hidden />
          <span className="truncate">
            {LABELS[one.kind] ?? one.kind}
            {one.position !== null && one.position > 0 && `: ${one.position} ahead in the repository's queue`}
            {one.what && `: ${one.what}`}
          </span>
          {one.percent !== null && (
            <progress
              className="h-1.5 w-24 shrink-0 accent-info"
              value={one.percent}
              max={100}
              aria-label={`${one.percent} %`}
            />
          )}
        </div>
      ))}
    </div>
  );
}

/** An error message that stays until it is dismissed. */
export function ErrorBanner({
  title,
  text,
  onClose,
  children,
}: {
  title: string;
  text: string;
  onClose: () => void;
  children?: React.ReactNode;
}) {
  return (
    <div role="alert" className="flex items-start gap-2 border-b bg-bad-soft px-3 py-2 text-[13px]">
      <CircleAlert className="mt-0.5 size-4 shrink-0 text-bad" aria-hidden />
      <div className="min-w-0 flex-1">
        <p className="font-medium text-bad">{title}</p>
        <p className="text-xs text-soft [overflow-wrap:anywhere]">{text}</p>
        {children && <div className="mt-1.5 flex flex-wrap gap-2">{children}</div>}
      </div>
      <IconButton size="sm" label="Dismiss" onClick={onClose}>
        <X className="size-3.5" aria-hidden />
      </IconButton>
    </div>
  );
}
