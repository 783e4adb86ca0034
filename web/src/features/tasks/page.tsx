import { Link, useNavigate, useParams, useSearch } from "@tanstack/react-router";
import { Pencil } from "lucide-react";
import { useState } from "react";
import { ApiError } from "@/api/client";
import { useAgents } from "@/api/queries/agents";
import { useTask, useTasks } from "@/api/queries/tasks";
import type { Task } from "@/api/types";
import { Workspace } from "@/features/workspace/workspace";
import { agentTitle, leadingAttempt } from "@/model/task-facts";
import { Button } from "@/ui/button";
import { Textarea } from "@/ui/field";
import { Markdown } from "@/ui/markdown";
import { useTitle } from "@/ui/page";
import { Empty, Loaded } from "@/ui/states";
import { StartButton } from "./actions";
import { TaskHeader } from "./header";
import { useMayChangeWork, useTaskActions } from "./use-task-actions";

/** The page of a task. */
export function TaskPage() {
  const { taskId } = useParams({ from: "/inside/tasks/$taskId" });
  const search = useSearch({ from: "/inside/tasks/$taskId" });
  const navigate = useNavigate({ from: "/tasks/$taskId" });
  const query = useTask(taskId);
  useTitle(query.data?.title ?? "Task");
  if (query.error instanceof ApiError && query.error.status === 404) {
    return (
      <Empty
        title={<h1>Task not found</h1>}
        action={
          <Link to="/board" className="text-accent underline">
            Open board
          </Link>
        }
      >
        It was deleted, or it belongs to a project you cannot access.
      </Empty>
    );
  }
  return (
    <Loaded query={query}>
      {(task) => {
        const attempt = task.attempts.find((candidate) => candidate.number === search.attempt) ?? leadingAttempt(task);
        return (
          <div className="flex min-h-0 flex-1 flex-col">
            <TaskHeader
              task={task}
              attempt={attempt}
              onAttempt={(number) => navigate({ search: { ...search, attempt: number, at: undefined } })}
            />
            {attempt ? (
              <Workspace
                key={attempt.id}
                sessionId={attempt.sessionId}
                task={task}
                attempt={attempt}
                search={search}
                onSearch={(change, replace = false) => navigate({ search: { ...search, ...change }, replace })}
              />
            ) : (
              <NotStarted task={task} />
            )}
          </div>
        );
      }}
    </Loaded>
  );
}

function NotStarted({ task }: { task: Task }) {
  const [draft, setDraft] = useState<string | null>(null);
  const { update } = useTaskActions();
  const mayChange = useMayChangeWork(task);
  const open = task.status === "backlog";
  return (
    <div className="min-h-0 flex-1 overflow-y-auto">
      <div className="mx-auto max-w-3xl px-3 py-4 sm:px-5">
        <div className="mb-2 flex items-center gap-2">
          <h2 className="mr-auto text-[13px] font-medium text-soft">Description</h2>
          {draft === null && mayChange && (
            <Button size="sm" look="ghost" onClick={() => setDraft(task.description)}>
              <Pencil className="size-3.5" aria-hidden /> Edit
            </Button>
          )}
        </div>
        {draft !== null ? (
          <form
            className="flex flex-col gap-2"
            onSubmit={(event) => {
              event.preventDefault();
              update.mutate({ id: task.id, description: draft }, { onSuccess: () => setDraft(null) });
            }}
          >
            <Textarea
              aria-label="Description"
              rows={12}
              maxLength={50_000}
              value={draft}
              onChange={(event) => setDraft(event.target.value)}
            />
            <div className="flex gap-2">
              <Button type="submit" look="primary" busy={update.isPending}>
                Save
              </Button>
              <Button onClick={() => setDraft(null)}>Cancel</Button>
            </div>
          </form>
        ) : (
          <div className="rounded-lg border bg-surface px-4 py-3">
            {task.description.trim() ? (
              <Markdown text={task.description} />
            ) : (
              <p className="text-[13px] text-soft">No description. The agent gets only the title: {task.title}</p>
            )}
          </div>
        )}
        <Facts task={task} />
        {open && task.startError && (
          <p role="status" className="mt-3 text-[13px] text-warn">
            Not started: {task.startError}
          </p>
        )}
        <div className="mt-4 flex items-center gap-3">
          {open ? (
            <StartButton task={task} size="md" />
          ) : (
            <p className="text-[13px] text-soft">Move the task to the backlog to start it.</p>
          )}
        </div>
      </div>
    </div>
  );
}

function Facts({ task }: { task: Task }) {
  const agents = useAgents().data;
  const others = useTasks(task.projectId, { enabled: task.blockedBy.length > 0 }).data;
  const title = (name: string | null) => {
    const agent = agents?.find((candidate) => candidate.name === name);
    return agent ? agentTitle(agent) : (name ?? "Project default");
  };
  const wanted = task.wanted.length ? task.wanted : [{ agent: task.agent, model: task.model }];
  return (
    <dl className="mt-3 grid grid-cols-[auto_1fr] gap-x-4 gap-y-1 text-[13px]">
      <dt className="text-soft">{wanted.length > 1 ? `${wanted.length} attempts` : "Agent"}</dt>
      <dd>
        {wanted
          .map(
            (item) =>
              `${title(item.agent ?? task.agent)}${(item.model ?? task.model) ? ` · ${item.model ?? task.model}` : ""}`,
          )
          .join(", ")}
      </dd>
      {task.baseBranch && (
        <>
          <dt className="text-soft">Base branch</dt>
          <dd className="font-mono text-xs leading-5">{task.baseBranch}</dd>
        </>
      )}
      {task.blockedBy.length > 0 && (
        <>
          <dt className="text-soft">Depends on</dt>
          <dd className="flex flex-col">
            {task.blockedBy.map((id) => (
              <Link key={id} to="/tasks/$taskId" params={{ taskId: id }} className="text-accent underline">
                {others?.find((other) => other.id === id)?.title ?? id}
              </Link>
            ))}
          </dd>
        </>
      )}
    </dl>
  );
}
