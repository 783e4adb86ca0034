import { Link } from "@tanstack/react-router";
import { Check, CircleHelp, GitBranch, X } from "lucide-react";
import { useAgents } from "@/api/queries/agents";
import { useCommandTail } from "@/api/queries/commands";
import { usePickAttempt } from "@/api/queries/tasks";
import type { Attempt, Task } from "@/api/types";
import { Output } from "@/features/conversation/terminal-output";
import { PullBadge } from "@/features/pulls/pull-badge";
import { count, ESTIMATED, formatCost, pluralize } from "@/lib/format";
import { titleOf } from "@/model/agent-facts";
import { attemptStatus, describeActivity, isAtWork } from "@/model/task-facts";
import { Button } from "@/ui/button";
import { Confirm } from "@/ui/dialog";
import { PlainText } from "@/ui/plain-text";
import { Status } from "@/ui/status";
import { showError } from "@/ui/toast";
import { WorkTime } from "./work-time";

/** The attempts of a task side by side, to pick one. Archived attempts of an earlier start come last. */
export function AttemptsPanel({ task }: { task: Task }) {
  const sorted = [...task.attempts].sort(
    (one, other) =>
      Number(one.status === "archived") - Number(other.status === "archived") || one.number - other.number,
  );
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: it scrolls, so the keyboard must reach it
    <section className="min-h-0 flex-1 overflow-auto p-3" tabIndex={0} aria-label="Attempts">
      <ul className="grid grid-cols-[repeat(auto-fit,minmax(min(100%,17rem),1fr))] gap-3">
        {sorted.map((attempt) => (
          <li key={attempt.id}>
            <AttemptColumn task={task} attempt={attempt} />
          </li>
        ))}
      </ul>
    </section>
  );
}

function AttemptColumn({ task, attempt }: { task: Task; attempt: Attempt }) {
  const agents = useAgents().data;
  const others = task.attempts.filter((candidate) => candidate.id !== attempt.id);
  const busy = others.filter(isAtWork);
  const pick = usePickAttempt({ onError: showError("Could not pick the attempt") });
  const search = (tab: string) => ({ tab, attempt: attempt.number });
  const tokens = attempt.spent.inputTokens + attempt.spent.outputTokens;
  return (
    <article
      className="flex h-full flex-col gap-2 rounded-lg border bg-surface p-3"
      aria-label={`Attempt ${attempt.number}`}
    >
      <div className="flex items-center gap-2">
        <h3 className="font-semibold">Attempt {attempt.number}</h3>
        <span className="ml-auto" aria-live="polite">
          <Status status={attemptStatus(attempt)} />
        </span>
      </div>
      <dl className="grid grid-cols-[auto_1fr] gap-x-3 gap-y-1 text-[13px]">
        <Fact name="Agent">
          {titleOf(attempt.agent, agents)}
          {attempt.model && <span className="text-soft"> · {attempt.model}</span>}
        </Fact>
        {attempt.status === "running" && attempt.step && <Fact name="Current step">{describeActivity(attempt)}</Fact>}
        {!(attempt.verified && attempt.status === "failed") && (
          <Fact name="Verified">
            <Verified attempt={attempt} />
          </Fact>
        )}
        <Fact name="Changes">
          {attempt.diff ? (
            <span className="tabular-nums">
              {pluralize(attempt.diff.files, "file")}, <span className="text-ok">+{count(attempt.diff.added)}</span>{" "}
              <span className="text-bad">−{count(attempt.diff.removed)}</span>
            </span>
          ) : (
            "–"
          )}
        </Fact>
        <Fact name="Cost">
          <span className="tabular-nums" title={attempt.spent.estimated ? ESTIMATED : undefined}>
            {attempt.spent.calls ? formatCost(attempt.spent.costUsd, attempt.spent.estimated > 0) : "–"}
            {tokens > 0 && <span className="text-soft"> · {count(tokens)} tokens</span>}
          </span>
        </Fact>
        <Fact name="Time">
          <span className="tabular-nums">{attempt.seconds === null ? "–" : <WorkTime attempt={attempt} />}</span>
        </Fact>
        {attempt.branch && (
          <Fact name="Branch">
            <span className="flex min-w-0 items-center gap-1 font-mono text-xs leading-5">
              <GitBranch className="size-3 shrink-0 text-faint" aria-hidden />
              <span className="min-w-0 break-all">{attempt.branch}</span>
            </span>
          </Fact>
        )}
        {attempt.pullRequest && (
          <Fact name="Published">
            <PullBadge pull={attempt.pullRequest} />
          </Fact>
        )}
      </dl>
      {attempt.error && (
        <div className="line-clamp-6 rounded-md bg-bad-soft px-2 py-1.5 text-xs">
          <PlainText text={attempt.error} />
        </div>
      )}
      <VerifyOutput attempt={attempt} />
      <div className="mt-auto flex flex-wrap items-center gap-2 pt-1">
        {attempt.status === "ready" && (
          <Confirm
            trigger={
              <Button look="primary" size="sm" disabled={busy.length > 0} busy={pick.isPending}>
                Pick this attempt
              </Button>
            }
            title={`Pick attempt ${attempt.number}?`}
            action="Pick"
            onConfirm={() => pick.mutateAsync({ id: task.id, attemptId: attempt.id })}
          >
            Its work is pushed and becomes the pull request.{" "}
            {others.length > 0 && "The other attempts are archived; their branches and conversations are kept."}
          </Confirm>
        )}
        <Link
          to="/tasks/$taskId"
          params={{ taskId: task.id }}
          search={search("changes")}
          className="text-[13px] text-accent underline"
        >
          Changes
        </Link>
        <Link
          to="/tasks/$taskId"
          params={{ taskId: task.id }}
          search={search("conversation")}
          className="text-[13px] text-accent underline"
        >
          Conversation
        </Link>
        {attempt.status === "ready" && busy.length > 0 && (
          <p className="w-full text-xs text-soft">You can pick it when the other attempts are done.</p>
        )}
      </div>
    </article>
  );
}

function Fact({ name, children }: { name: string; children: React.ReactNode }) {
  return (
    <>
      <dt className="text-soft">{name}</dt>
      <dd className="min-w-0">{children}</dd>
    </>
  );
}

function Verified({ attempt }: { attempt: Attempt }) {
  if (attempt.verified === null) {
    return (
      <span className="flex items-center gap-1 text-soft">
        <CircleHelp className="size-3.5" aria-hidden /> Not verified
      </span>
    );
  }
  return attempt.verified ? (
    <span className="flex items-center gap-1 text-ok">
      <Check className="size-3.5" aria-hidden /> Verify command passed
    </span>
  ) : (
    <span className="flex items-center gap-1 text-bad">
      <X className="size-3.5" aria-hidden /> Verify command failed
    </span>
  );
}

/** The end of the output of the verify command. */
function VerifyOutput({ attempt }: { attempt: Attempt }) {
  const id = attempt.verification?.commandId;
  const command = typeof id === "string" ? id : "";
  const query = useCommandTail(attempt.sandboxId, command);
  if (!command) return null;
  const name = typeof attempt.verification?.command === "string" ? attempt.verification.command : "the verify command";
  return (
    <div>
      <p className="mb-1 truncate font-mono text-xs text-soft">$ {name}</p>
      {query.data ? (
        <Output text={query.data} label={`End of the output of ${name}`} />
      ) : (
        <p className="text-xs text-faint">
          {query.isPending ? "Loading output" : query.error ? "The output is no longer available." : "No output."}
        </p>
      )}
    </div>
  );
}
