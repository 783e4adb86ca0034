import { CircleAlert, RotateCw } from "lucide-react";
import { useRetryTurn } from "@/api/queries/conversation";
import type { Turn } from "@/api/types";
import { ProviderHelp } from "@/features/models/provider-help";
import { BudgetHelp } from "@/features/projects/budget-help";
import { count, ESTIMATED, formatCost, formatDuration } from "@/lib/format";
import { ENDED_AFTER_DENIAL, TURNS } from "@/model/status-labels";
import { Button } from "@/ui/button";
import { PlainText } from "@/ui/plain-text";
import { Status } from "@/ui/status";
import { Elapsed } from "@/ui/time";
import { showError } from "@/ui/toast";
import { adviceFor, numbersOf } from "./rows";

/** How a turn ended, with advice if it failed. `retryable`: it is the last turn, and there is a sandbox to retry it in. */
export function TurnLine({
  turn,
  denied,
  retryable,
  agent,
  projectId,
  ofTask,
}: {
  turn: Turn;
  /** Permission was denied during the turn, so it may not have done what it was asked to. */
  denied: boolean;
  retryable: boolean;
  /** The session belongs to a task, whose header offers the ways to resolve a failure. */
  ofTask: boolean;
  agent: string | undefined;
  projectId: string | undefined;
}) {
  const { tokens, costUsd, estimated } = numbersOf(turn);
  const facts = [
    turn.model,
    turn.startedAt && turn.finishedAt
      ? formatDuration((Date.parse(turn.finishedAt) - Date.parse(turn.startedAt)) / 1000)
      : null,
    tokens ? `${count(tokens)} tokens` : null,
    costUsd !== null ? formatCost(costUsd, estimated) : null,
  ].filter(Boolean);
  const advice = adviceFor(turn.errorCode);
  const hasFailed = turn.status === "failed" || turn.status === "over_budget";
  return (
    <div className="flex flex-col gap-2 py-1">
      <div className="flex items-center gap-2 text-xs text-faint">
        <span className="h-px flex-1 bg-line" aria-hidden />
        <Status status={denied && turn.status === "completed" ? ENDED_AFTER_DENIAL : TURNS[turn.status]} />
        {facts.length > 0 && (
          <span className="min-w-0 truncate tabular-nums" title={estimated ? ESTIMATED : undefined}>
            {facts.join(" · ")}
          </span>
        )}
        {!hasFailed && turn.status === "cancelled" && retryable && <RetryButton turn={turn} />}
        <span className="h-px flex-1 bg-line" aria-hidden />
      </div>
      {hasFailed && turn.error && (
        <div
          role="alert"
          className="flex items-start gap-2 rounded-md border border-bad bg-bad-soft px-3 py-2 text-[13px]"
        >
          <CircleAlert className="mt-0.5 size-4 shrink-0 text-bad" aria-hidden />
          <div className="min-w-0 flex-1">
            <PlainText text={turn.error} />
            {advice && <p className="mt-1 text-soft">{advice}</p>}
            <div className="mt-1.5 flex flex-wrap items-center gap-2">
              {retryable && <RetryButton turn={turn} />}
              {turn.errorCode === "over_budget" && !ofTask && (
                <BudgetHelp sentence={turn.error} projectId={projectId} />
              )}
              <ProviderHelp code={turn.errorCode} agent={agent} projectId={projectId} />
              {turn.errorCode && <code className="font-mono text-2xs text-soft">{turn.errorCode}</code>}
            </div>
          </div>
        </div>
      )}
    </div>
  );
}

function RetryButton({ turn }: { turn: Turn }) {
  const retry = useRetryTurn({ onError: showError("Could not retry") });
  return (
    <Button size="sm" busy={retry.isPending || retry.isSuccess} onClick={() => retry.mutate(turn)}>
      <RotateCw className="size-3.5" aria-hidden /> Retry
    </Button>
  );
}

/** The progress indicator below the last message. */
export function Working({ turn }: { turn: Turn }) {
  const waiting = turn.status === "waiting";
  const word = turn.cancelAt ? { text: "Stopping", tone: "idle" as const, busy: true } : TURNS[turn.status];
  return (
    <div className="flex items-center gap-2 py-1 text-xs text-soft" role="status">
      <Status status={word} />
      <span className="tabular-nums">
        {turn.startedAt && <Elapsed from={turn.startedAt} />}
        {turn.model && ` · ${turn.model}`}
      </span>
      {turn.stuckAt && !waiting && (
        <span className="text-warn">
          No activity for <Elapsed from={turn.activeAt ?? turn.stuckAt} />
        </span>
      )}
    </div>
  );
}
