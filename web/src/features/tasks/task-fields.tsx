import { useState } from "react";
import { useAgents } from "@/api/queries/agents";
import { useProjects } from "@/api/queries/projects";
import { useSession } from "@/api/queries/sessions";
import type { Task } from "@/api/types";
import { KeyNote } from "@/features/models/provider-help";
import { needsKey } from "@/model/agent-facts";
import { Button } from "@/ui/button";
import { Field, Input, Select, Switch, Textarea } from "@/ui/field";
import { AttemptRows } from "./attempt-rows";
import { DemoHelp } from "./demo-help";
import { NeedsPicker } from "./needs-picker";
import type { Draft } from "./task-form";

/** The form fields of a task. `errors` maps API field names to error messages. */
export function TaskFields({
  draft,
  set,
  errors,
  task,
  projects: offered,
  focus = "title",
}: {
  draft: Draft;
  set: (change: Partial<Draft>) => void;
  errors: Record<string, string>;
  task: Task | undefined;
  projects: { id: string; name: string }[];
  focus?: "title" | "agent" | undefined;
}) {
  const workers = useAgents();
  const known = useProjects();
  const project = known.data?.find((candidate) => candidate.id === draft.projectId);
  const demo = draft.rows.some(
    (row) => workers.data?.find((worker) => worker.name === (row.agent || project?.defaultAgent))?.demo,
  );
  const lacking = (workers.data ?? []).filter(
    (worker) =>
      needsKey(worker, draft.projectId) &&
      draft.rows.some((row) => worker.name === (row.agent || project?.defaultAgent)),
  );
  const [more, setMore] = useState(
    Boolean(draft.baseBranch || draft.priority || draft.usd || draft.tokens || draft.needs.length),
  );
  const wrong = ["baseBranch", "priority", "budget.usd", "budget.tokens", "needs"].some((name) => errors[name]);
  return (
    <>
      <Field label="Title" error={errors.title}>
        {(control) => (
          <Input
            {...control}
            value={draft.title}
            maxLength={300}
            autoFocus={focus === "title"}
            placeholder="Fix the login for upper-case names"
            onChange={(event) => set({ title: event.target.value })}
          />
        )}
      </Field>
      <Field
        label="Description"
        error={errors.description}
        hint="What the agent should do, in detail. Markdown is supported."
      >
        {(control) => (
          <Textarea
            {...control}
            rows={6}
            maxLength={100_000}
            value={draft.description}
            onChange={(event) => set({ description: event.target.value })}
          />
        )}
      </Field>
      {demo && (
        <DemoHelp
          onExample={(text) =>
            set({
              description: draft.description ? `${draft.description.trimEnd()}\n\n${text}` : text,
              title: draft.title || "Say hello",
            })
          }
        />
      )}
      {draft.fromSessionId && (
        <SourceSession
          id={draft.fromSessionId}
          error={errors.fromSessionId}
          onRemove={task && (() => set({ fromSessionId: "" }))}
        />
      )}
      {!task && !draft.fromSessionId && (
        <Field label="Project" error={errors.projectId}>
          {(control) => (
            <Select
              {...control}
              value={draft.projectId}
              placeholder="Choose a project"
              onChange={(projectId) => set({ projectId, needs: [] })}
              choices={offered.map((item) => ({ value: item.id, label: item.name }))}
            />
          )}
        </Field>
      )}
      <AttemptRows
        rows={draft.rows}
        onChange={(rows) => set({ rows })}
        agents={workers.data ?? []}
        project={project}
        errors={errors}
        autoFocus={focus === "agent"}
      />
      {lacking.map((agent) => (
        <KeyNote key={agent.name} agent={agent} projectId={draft.projectId || undefined} />
      ))}
      <details
        open={more || wrong}
        onToggle={(event) => setMore(event.currentTarget.open)}
        className="rounded-md border"
      >
        <summary className="cursor-pointer px-2.5 py-1.5 text-[13px] font-medium text-soft">
          Branch, priority, budget, dependencies
        </summary>
        <div className="flex flex-col gap-3 border-t px-2.5 py-2.5">
          <div className="grid gap-3 sm:grid-cols-2">
            {!draft.fromSessionId && (
              <Small
                label="Base branch"
                name="baseBranch"
                placeholder={project?.baseBranch ?? "Project default"}
                draft={draft}
                set={set}
                error={errors.baseBranch}
              />
            )}
            <Small
              label="Priority"
              name="priority"
              placeholder="0"
              hint="-100 to 100; higher priorities start first"
              draft={draft}
              set={set}
              error={errors.priority}
            />
            <Small
              label="Budget (USD)"
              name="usd"
              placeholder="Project default"
              draft={draft}
              set={set}
              error={errors["budget.usd"]}
            />
            <Small
              label="Budget (tokens)"
              name="tokens"
              placeholder="Project default"
              draft={draft}
              set={set}
              error={errors["budget.tokens"]}
            />
          </div>
          <NeedsPicker
            projectId={draft.projectId}
            self={task?.id}
            value={draft.needs}
            onChange={(needs) => set({ needs })}
            error={errors.needs}
          />
        </div>
      </details>
      {!task && (
        <Switch
          label={draft.needs.length ? "Start when dependencies are done" : "Start now"}
          checked={draft.start}
          onChange={(start) => set({ start })}
        />
      )}
      {task?.status === "backlog" && (
        <Switch label="Start automatically when possible" checked={draft.start} onChange={(start) => set({ start })} />
      )}
      {task && task.status !== "backlog" && (
        <p className="text-xs text-faint">
          Running attempts are not affected. Changes apply to the next start or retry.
        </p>
      )}
    </>
  );
}

/** The session that the attempts start from. `onRemove`: let them start from the base branch instead. */
function SourceSession({
  id,
  error,
  onRemove,
}: {
  id: string;
  error: string | undefined;
  onRemove: (() => void) | undefined;
}) {
  const session = useSession(id);
  return (
    <div className="rounded-md border px-2.5 py-1.5 text-[13px]">
      <p>
        Each attempt starts from a copy of the session “{session.data?.title ?? id}”, with its commits and uncommitted
        files, on its own branch. In gVisor sandboxes, running processes continue in the copy.
      </p>
      {session.error && <p className="text-bad">The session was deleted, or you do not have access to it.</p>}
      {error && <p className="text-bad">{error}</p>}
      {onRemove && (
        <Button size="sm" onClick={onRemove}>
          Start from the base branch instead
        </Button>
      )}
    </div>
  );
}

function Small({
  label,
  name,
  draft,
  set,
  error,
  hint,
  placeholder,
}: {
  label: string;
  name: "baseBranch" | "priority" | "usd" | "tokens";
  draft: Draft;
  set: (change: Partial<Draft>) => void;
  error: string | undefined;
  hint?: string;
  placeholder: string;
}) {
  return (
    <Field label={label} error={error} hint={hint}>
      {(control) => (
        <Input
          {...control}
          value={draft[name]}
          maxLength={200}
          inputMode={name === "baseBranch" ? "text" : "decimal"}
          placeholder={placeholder}
          onChange={(event) => set({ [name]: event.target.value })}
        />
      )}
    </Field>
  );
}
