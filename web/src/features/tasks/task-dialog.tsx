import { Link, useNavigate } from "@tanstack/react-router";
import { type FormEvent, useId, useState } from "react";
import { ApiError } from "@/api/client";
import { useProjects } from "@/api/queries/projects";
import { useSaveTask } from "@/api/queries/tasks";
import type { Session, Task } from "@/api/types";
import { useStored } from "@/lib/stored";
import { Kbd } from "@/ui/badge";
import { Button } from "@/ui/button";
import { Dialog } from "@/ui/dialog";
import { Empty, errorMessage, Loaded } from "@/ui/states";
import { toast } from "@/ui/toast";
import { OthersWorkNote } from "./others-work-note";
import { TaskFields } from "./task-fields";
import {
  changesOf,
  type Draft,
  draftOf,
  emptyDraft,
  errorsByField,
  errorsOf,
  newTask,
  remainingErrors,
} from "./task-form";

interface Props {
  open: boolean;
  onOpenChange: (open: boolean) => void;
  projectId?: string | undefined;
  /** The session that a new task starts from. */
  source?: Session | undefined;
  /** The task to edit; undefined to create one. */
  task?: Task;
  focus?: "title" | "agent" | undefined;
}

export function TaskDialog({ open, onOpenChange, projectId, source, task, focus }: Props) {
  const form = useId();
  const navigate = useNavigate();
  const projects = useProjects();
  const [lastProject, rememberProject] = useStored("task.project", "");
  const [lastAgent, rememberAgent] = useStored("task.agent", "");
  const [edited, setEdited] = useState<Draft | null>(task ? draftOf(task) : null);
  const [errors, setErrors] = useState<Record<string, string>>({});
  const choices = projects.data?.filter((project) => !project.archivedAt) ?? [];
  const suggested =
    [source?.projectId, projectId, lastProject].find((id) => choices.some((choice) => choice.id === id)) ??
    choices[0]?.id ??
    "";
  const draft = edited ?? emptyDraft(suggested, source?.agent ?? lastAgent, source?.id);
  const set = (change: Partial<Draft>) => {
    setEdited({ ...draft, ...change });
    setErrors(remainingErrors(errors, change));
  };
  const showErrors = (found: Record<string, string>) => {
    setErrors(found);
    requestAnimationFrame(() =>
      document.getElementById(form)?.querySelector<HTMLElement>("[aria-invalid=true]")?.focus(),
    );
  };

  const finish = (saved: Task) => {
    onOpenChange(false);
    setErrors({});
    if (task) return;
    rememberProject(saved.projectId);
    rememberAgent(draft.rows[0]?.agent ?? "");
    setEdited(null);
    toast.success(saved.status === "backlog" ? "Task created" : "Task created and started", {
      description: saved.title,
      action: {
        label: "Open",
        onClick: () => navigate({ to: "/tasks/$taskId", params: { taskId: saved.id } }),
      },
    });
  };
  const save = useSaveTask({ onSuccess: finish });
  const send = () => {
    const options = {
      onError: (error: Error) => showErrors(error instanceof ApiError ? errorsByField(error.problem.errors) : {}),
    };
    if (!task) return save.mutate({ body: newTask(draft) }, options);
    const body = changesOf(task, draft);
    return body ? save.mutate({ id: task.id, body }, options) : finish(task);
  };
  const submit = (event?: FormEvent) => {
    event?.preventDefault();
    if (save.isPending) return;
    const found = errorsOf(draft);
    if (Object.keys(found).length) {
      showErrors(found);
      return;
    }
    setErrors({});
    send();
  };
  const close = (next: boolean) => {
    if (!next) save.reset();
    onOpenChange(next);
  };
  return (
    <Dialog
      open={open}
      onOpenChange={close}
      title={task ? "Edit task" : source ? "New task from this session" : "New task"}
      footer={
        <>
          <span className="mr-auto hidden text-xs text-faint sm:block">
            <Kbd>Ctrl</Kbd> <Kbd>Enter</Kbd>
          </span>
          <Button onClick={() => close(false)}>Cancel</Button>
          <Button look="primary" type="submit" form={form} busy={save.isPending} disabled={!choices.length && !task}>
            {task ? "Save" : draft.start ? "Create and start" : "Create"}
          </Button>
        </>
      }
    >
      <Loaded query={projects}>
        {() =>
          choices.length || task ? (
            <form
              id={form}
              noValidate
              onSubmit={submit}
              onKeyDown={(event) => {
                if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit(event);
              }}
              className="flex flex-col gap-3"
            >
              {save.error && !Object.keys(errors).length && (
                <p role="alert" className="rounded-md bg-bad-soft px-2.5 py-1.5 text-[13px] text-bad">
                  {errorMessage(save.error)}
                </p>
              )}
              {task && <OthersWorkNote task={task} />}
              <TaskFields draft={draft} set={set} errors={errors} task={task} projects={choices} focus={focus} />
            </form>
          ) : (
            <Empty
              title="No projects yet"
              action={
                <Link to="/welcome" onClick={() => close(false)} className="text-accent underline underline-offset-2">
                  Add a repository
                </Link>
              }
            >
              Tasks run in the repository of a project.
            </Empty>
          )
        }
      </Loaded>
    </Dialog>
  );
}
