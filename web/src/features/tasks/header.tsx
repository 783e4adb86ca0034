import { Link } from "@tanstack/react-router";
import clsx from "clsx";
import { ArrowRight, CircleAlert, Pencil, Square } from "lucide-react";
import { useEffect, useRef, useState } from "react";
import { useAgents } from "@/api/queries/agents";
import { usePendingAsks } from "@/api/queries/conversation";
import { useProjects } from "@/api/queries/projects";
import type { Attempt, Task } from "@/api/types";
import { WorkTime } from "@/features/attempts/work-time";
import { AllowDenied } from "@/features/conversation/allow";
import { adviceFor } from "@/features/conversation/rows";
import { ProviderHelp } from "@/features/models/provider-help";
import { PullBadge } from "@/features/pulls/pull-badge";
import { ESTIMATED, formatCost } from "@/lib/format";
import { titleOf } from "@/model/agent-facts";
import { COLUMNS, TURNS } from "@/model/status-labels";
import {
  attemptStatus,
  hasFailed,
  isRunning,
  needsPerson,
  roundOf,
  spentOn,
  taskStatus,
  timedAttempt,
  wasStopped,
} from "@/model/task-facts";
import { IconButton } from "@/ui/button";
import { Input, Select } from "@/ui/field";
import { PlainText } from "@/ui/plain-text";
import { Status } from "@/ui/status";
import { TaskActions } from "./actions";
import { NextSteps } from "./next-steps";
import { RaiseBudget } from "./raise-budget";
import { StepLine } from "./steps";
import { useMayChangeWork, useTaskActions } from "./use-task-actions";

export function TaskHeader({
  task,
  attempt,
  onAttempt,
}: {
  task: Task;
  attempt: Attempt | undefined;
  onAttempt: (number: number) => void;
}) {
  const asks = usePendingAsks();
  const agents = useAgents().data;
  const asked = new Set(asks.data?.map((ask) => ask.sessionId));
  const word = isRunning(task) && needsPerson(task, asked) ? TURNS.waiting : taskStatus(task);
  const { retry } = useTaskActions();
  const spent = spentOn(task);
  const clock = timedAttempt(task);
  const failure = task.error ?? (attempt?.status === "failed" ? attempt.error : null);
  const stopped = wasStopped(attempt);
  const round = attempt ? roundOf(attempt) : 1;
  return (
    <header className="shrink-0 border-b bg-surface px-3 py-2 sm:px-4">
      <div className="flex flex-wrap items-center gap-x-2 gap-y-1">
        <EditableTitle key={task.id} task={task} />
        <TaskActions task={task} />
      </div>
      <div className="mt-1 flex flex-wrap items-center gap-x-2 gap-y-1 text-xs text-soft">
        <span className="flex items-center gap-1.5" aria-live="polite">
          {!(word && hasFailed(task)) && <Status status={COLUMNS[task.status]} />}
          {word && (word === TURNS.waiting ? <ToQuestion task={task} asked={asked} /> : <Status status={word} />)}
        </span>
        <ProjectName id={task.projectId} />
        {task.attempts.length > 1 && attempt && <AttemptPicker task={task} attempt={attempt} onAttempt={onAttempt} />}
        {attempt && (
          <span className="truncate">
            {titleOf(attempt.agent, agents)}
            {attempt.model && ` · ${attempt.model}`}
            {round > 1 && ` · round ${round}`}
          </span>
        )}
        {clock && (
          <span className={clsx("tabular-nums", clock.workingSince && "min-w-[6ch]")} title="Working time">
            <WorkTime attempt={clock} />
          </span>
        )}
        {spent && (
          <span
            className="tabular-nums"
            title={
              spent.hasUnpriced
                ? "Some models have no known price."
                : spent.estimated
                  ? `Spent on models. ${ESTIMATED}`
                  : "Spent on models"
            }
          >
            {formatCost(spent.usd, spent.estimated)}
            {spent.hasUnpriced && "+"}
          </span>
        )}
        {task.pullRequest && <PullBadge pull={task.pullRequest} />}
      </div>
      {attempt?.steps && attempt.steps.length > 0 && <StepLine attempt={attempt} />}
      {failure && stopped && task.status !== "done" && (
        <p className="mt-1.5 flex items-start gap-2 rounded-md bg-idle-soft px-2.5 py-1.5 text-[13px]">
          <Square className="mt-1 size-3 shrink-0 fill-current text-faint" aria-hidden />
          The agent was stopped and its work is kept. Send a message to continue, or retry.
        </p>
      )}
      {failure && !stopped && task.status !== "done" && (
        <div
          role="alert"
          className="mt-1.5 flex flex-wrap items-start gap-2 rounded-md bg-bad-soft px-2.5 py-1.5 text-[13px]"
        >
          <CircleAlert className="mt-0.5 size-3.5 shrink-0 text-bad" aria-hidden />
          <div className="min-w-0 flex-1 basis-64">
            <div className="line-clamp-6">
              <PlainText text={failure} />
            </div>
            {attempt?.errorCode?.startsWith("model_") && <p className="text-soft">{adviceFor(attempt.errorCode)}</p>}
            <NextSteps task={task} attempt={attempt} />
          </div>
          {attempt?.errorCode === "permission_refused" && attempt.sessionId && (
            <span className="ml-auto shrink-0">
              <AllowDenied sessionId={attempt.sessionId} />
            </span>
          )}
          {attempt?.errorCode === "agent_gave_up" && (
            <Link
              to="/projects/$projectId"
              params={{ projectId: task.projectId }}
              search={{ tab: "agent" }}
              className="shrink-0 text-accent underline underline-offset-2"
            >
              Change permissions
            </Link>
          )}
          {attempt?.errorCode === "over_budget" && <RaiseBudget task={task} sentence={failure} />}
          <ProviderHelp
            code={attempt?.errorCode}
            agent={attempt?.agent}
            projectId={task.projectId}
            onAdded={() => retry.mutate({ id: task.id })}
          />
        </div>
      )}
    </header>
  );
}

/** Link to the pending question: it may be visible next to this tab, or be in the conversation of any attempt. */
function ToQuestion({ task, asked }: { task: Task; asked: ReadonlySet<string> }) {
  const attempt = task.attempts.find((candidate) => asked.has(candidate.sessionId ?? ""));
  return (
    <Link
      to="/tasks/$taskId"
      params={{ taskId: task.id }}
      search={(now) => ({ ...now, tab: "conversation", attempt: attempt?.number, at: undefined })}
      title="Go to the question"
      onClick={(event) => {
        const question = document.querySelector(`[data-ask-of="${attempt?.sessionId}"]`);
        if (!question) return;
        event.preventDefault();
        question.scrollIntoView({ block: "center" });
      }}
      className="flex items-center gap-0.5 rounded pr-1 hover:bg-hover"
    >
      <Status status={TURNS.waiting} />
      <ArrowRight className="size-3 text-warn" aria-hidden />
    </Link>
  );
}

function ProjectName({ id }: { id: string }) {
  const project = useProjects().data?.find((candidate) => candidate.id === id);
  if (!project) return null;
  return (
    <Link to="/board" search={{ project: id }} className="max-w-40 truncate underline-offset-2 hover:underline">
      {project.name}
    </Link>
  );
}

function AttemptPicker({
  task,
  attempt,
  onAttempt,
}: {
  task: Task;
  attempt: Attempt;
  onAttempt: (number: number) => void;
}) {
  const agents = useAgents().data;
  return (
    <Select
      label="Attempt"
      className="!h-6 !w-auto text-xs"
      value={String(attempt.number)}
      onChange={(value) => onAttempt(Number(value))}
      choices={task.attempts.map((other) => ({
        value: String(other.number),
        label: `Attempt ${other.number}`,
        detail: `${titleOf(other.agent, agents)}${other.model ? ` · ${other.model}` : ""} · ${attemptStatus(other).text}`,
      }))}
    />
  );
}

function EditableTitle({ task }: { task: Task }) {
  const [draft, setDraft] = useState<string | null>(null);
  const { update } = useTaskActions();
  const mayChange = useMayChangeWork(task);
  const field = useRef<HTMLInputElement>(null);
  const editing = draft !== null;
  useEffect(() => {
    if (editing) field.current?.select();
  }, [editing]);
  const save = () => {
    const title = draft?.trim();
    if (!title || title === task.title) setDraft(null);
    else if (!update.isPending) update.mutate({ id: task.id, title }, { onSuccess: () => setDraft(null) });
  };
  if (draft !== null) {
    return (
      <form
        className="min-w-0 flex-1 basis-60"
        onSubmit={(event) => {
          event.preventDefault();
          save();
        }}
      >
        <Input
          ref={field}
          aria-label="Title"
          maxLength={300}
          value={draft}
          disabled={update.isPending}
          onChange={(event) => setDraft(event.target.value)}
          onBlur={save}
          onKeyDown={(event) => event.key === "Escape" && setDraft(null)}
          className="text-[15px] font-semibold"
        />
      </form>
    );
  }
  return (
    <div className="flex min-w-0 flex-1 basis-40 items-center gap-1 sm:basis-60">
      <h1 className="line-clamp-2 min-w-0 text-[15px] font-semibold break-words">{task.title}</h1>
      {mayChange && (
        <IconButton label="Edit title" size="sm" onClick={() => setDraft(task.title)}>
          <Pencil className="size-3.5" aria-hidden />
        </IconButton>
      )}
    </div>
  );
}
