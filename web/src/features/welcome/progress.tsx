import { Link } from "@tanstack/react-router";
import { CircleCheck, GitPullRequest } from "lucide-react";
import { usePendingAsks } from "@/api/queries/conversation";
import { useTask } from "@/api/queries/tasks";
import type { Task } from "@/api/types";
import { WorkTime } from "@/features/attempts/work-time";
import { AskRow } from "@/features/conversation/ask";
import { ProviderHelp } from "@/features/models/provider-help";
import { useTaskActions } from "@/features/tasks/use-task-actions";
import { sanitizeHref } from "@/lib/links";
import { TURNS } from "@/model/status-labels";
import { attemptStatus, describeActivity, isAtWork } from "@/model/task-facts";
import { Button } from "@/ui/button";
import { Loaded } from "@/ui/states";
import { Status } from "@/ui/status";

/** The progress of the first task. */
export function Progress({ taskId, onRestart }: { taskId: string; onRestart: () => void }) {
  const query = useTask(taskId);
  return (
    <div className="rounded-lg border bg-surface p-4">
      <Loaded query={query}>{(task) => <TaskProgress task={task} onRestart={onRestart} />}</Loaded>
    </div>
  );
}

function TaskProgress({ task, onRestart }: { task: Task; onRestart: () => void }) {
  const attempt = task.attempts[0];
  const pull = task.pullRequest;
  const hasEnded = attempt?.status === "failed" || attempt?.status === "cancelled";
  const link = sanitizeHref(pull?.url);
  const { retry } = useTaskActions();
  const asks = usePendingAsks().data?.filter((pendingAsk) => pendingAsk.sessionId === attempt?.sessionId) ?? [];
  const waiting = attempt !== undefined && isAtWork(attempt) && asks.length > 0;
  return (
    <div className="flex flex-col gap-3" aria-live="polite">
      <div className="flex flex-wrap items-center gap-2">
        <h2 className="mr-auto font-semibold">{task.title}</h2>
        {attempt && <Status status={waiting ? TURNS.waiting : attemptStatus(attempt)} />}
        {attempt?.seconds != null && <WorkTime attempt={attempt} className="text-xs text-faint tabular-nums" />}
      </div>
      {waiting ? (
        <>
          <p>
            {asks.some((ask) => ask.kind === "question")
              ? "The agent has a question. It continues when you answer."
              : "The agent asks for permission. It continues when you decide."}
          </p>
          {asks.map((ask) => (
            <AskRow key={ask.id} ask={ask} />
          ))}
        </>
      ) : pull ? (
        <p className="flex items-center gap-2 text-ok">
          <CircleCheck className="size-5" aria-hidden />
          {pull.number === null
            ? `The work is on the branch ${pull.headBranch}.`
            : `Pull request #${pull.number} is open.`}
        </p>
      ) : hasEnded ? (
        <p className="text-bad">{attempt.error ?? task.error ?? "The attempt was stopped."}</p>
      ) : (
        <p className="text-soft">{attempt?.step ? describeActivity(attempt) : "Queued"}…</p>
      )}
      {pull && attempt && !attempt.verification && (
        <p className="text-[13px] text-soft">
          No command has checked this work.{" "}
          <Link
            to="/projects/$projectId"
            params={{ projectId: task.projectId }}
            search={{ tab: "setup" }}
            className="text-accent underline underline-offset-2"
          >
            Set a verify command
          </Link>
          , such as the tests: it then has to succeed before anything is pushed.
        </p>
      )}
      <div className="flex flex-wrap gap-2">
        <Link
          to="/tasks/$taskId"
          params={{ taskId: task.id }}
          search={pull ? { tab: "changes" } : {}}
          className="inline-flex h-8 items-center rounded-md bg-accent px-3 text-[13px] font-medium text-on-accent hover:bg-accent-hover"
        >
          {pull ? "Review changes" : "Open task"}
        </Link>
        {link && pull?.number !== null && pull?.forge === "github" && (
          <a
            href={link}
            target="_blank"
            rel="noreferrer noopener"
            className="inline-flex h-8 items-center gap-1 rounded-md border border-line-strong px-3 text-[13px]"
          >
            <GitPullRequest className="size-4" aria-hidden /> Pull request
          </a>
        )}
        <Link
          to="/board"
          className="inline-flex h-8 items-center rounded-md border border-line-strong px-3 text-[13px] hover:bg-hover"
        >
          Go to the board
        </Link>
        {hasEnded && (
          <ProviderHelp
            code={attempt.errorCode}
            agent={attempt.agent}
            projectId={task.projectId}
            onAdded={() => retry.mutate({ id: task.id })}
          />
        )}
        {(pull || hasEnded) && <Button onClick={onRestart}>Create another task</Button>}
      </div>
    </div>
  );
}
