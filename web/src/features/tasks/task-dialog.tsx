import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate } from "@tanstack/react-router";
import { type FormEvent, useId, useState } from "react";
import { ApiError, api, got } from "@/api/client";
import { projects } from "@/api/queries";
import type { Task } from "@/api/types";
import { useStored } from "@/lib/stored";
import { Kbd } from "@/ui/badge";
import { Button } from "@/ui/button";
import { Dialog } from "@/ui/dialog";
import { Empty, Loaded, words } from "@/ui/states";
import { toast } from "@/ui/toast";
import { TaskFields } from "./task-fields";
import { changesOf, type Draft, draftOf, emptyDraft, faultsOf, newTask, placed, stillWrong } from "./task-form";

interface Props {
  open: boolean;
  onOpenChange: (open: boolean) => void;
  projectId?: string | undefined;
  /** The task to edit; undefined to create one. */
  task?: Task;
}

export function TaskDialog({ open, onOpenChange, projectId, task }: Props) {
  const form = useId();
  const known = useQuery(projects);
  const [lastProject, rememberProject] = useStored("task.project", "");
  const [lastAgent, rememberAgent] = useStored("task.agent", "");
  const [written, write] = useState<Draft | null>(task ? draftOf(task) : null);
  const [faults, setFaults] = useState<Record<string, string>>({});
  const offered = known.data?.filter((one) => !one.archivedAt) ?? [];
  const usual = [projectId, lastProject].find((id) => offered.some((one) => one.id === id)) ?? offered[0]?.id ?? "";
  const draft = written ?? emptyDraft(usual, lastAgent);
  const set = (change: Partial<Draft>) => {
    write({ ...draft, ...change });
    setFaults(stillWrong(faults, change));
  };
  const refuse = (found: Record<string, string>) => {
    setFaults(found);
    requestAnimationFrame(() =>
      document.getElementById(form)?.querySelector<HTMLElement>("[aria-invalid=true]")?.focus(),
    );
  };

  const save = useSave(task, (card) => {
    onOpenChange(false);
    setFaults({});
    if (task) return;
    rememberProject(card.projectId);
    rememberAgent(draft.rows[0]?.agent ?? "");
    write(null);
  });
  const submit = (event?: FormEvent) => {
    event?.preventDefault();
    if (save.isPending) return;
    const found = faultsOf(draft);
    if (Object.keys(found).length) {
      refuse(found);
      return;
    }
    setFaults({});
    save.mutate(draft, {
      onError: (error) => refuse(error instanceof ApiError ? placed(error.problem.errors) : {}),
    });
  };
  const close = (next: boolean) => {
    if (!next) save.reset();
    onOpenChange(next);
  };
  return (
    <Dialog
      open={open}
      onOpenChange={close}
      title={task ? "Edit task" : "New task"}
      footer={
        <>
          <span className="mr-auto hidden text-xs text-faint sm:block">
            <Kbd>Ctrl</Kbd> <Kbd>Enter</Kbd>
          </span>
          <Button onClick={() => close(false)}>Cancel</Button>
          <Button look="primary" type="submit" form={form} busy={save.isPending} disabled={!offered.length && !task}>
            {task ? "Save" : draft.start ? "Create and start" : "Create"}
          </Button>
        </>
      }
    >
      <Loaded query={known}>
        {() =>
          offered.length || task ? (
            <form
              id={form}
              noValidate
              onSubmit={submit}
              onKeyDown={(event) => {
                if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit(event);
              }}
              className="flex flex-col gap-3"
            >
              {save.error && !Object.keys(faults).length && (
                <p role="alert" className="rounded-md bg-bad-soft px-2.5 py-1.5 text-[13px] text-bad">
                  {words(save.error)}
                </p>
              )}
              <TaskFields draft={draft} set={set} faults={faults} task={task} projects={offered} />
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

/** Create or update the task. Errors are shown in the dialog, next to their field if they have one. */
function useSave(task: Task | undefined, saved: (card: Task) => void) {
  const client = useQueryClient();
  const navigate = useNavigate();
  return useMutation({
    mutationFn: (draft: Draft): Promise<Task> => {
      if (!task) return got(api.POST("/api/v1/tasks", { body: newTask(draft) }));
      const body = changesOf(task, draft);
      return body
        ? got(api.PATCH("/api/v1/tasks/{task_id}", { params: { path: { task_id: task.id } }, body }))
        : Promise.resolve(task);
    },
    onSuccess: (card) => {
      client.setQueryData(["task", card.id], card);
      for (const noun of ["tasks", "board", "counts"]) void client.invalidateQueries({ queryKey: [noun] });
      saved(card);
      if (!task) {
        const action = {
          label: "Open",
          onClick: () => navigate({ to: "/tasks/$taskId", params: { taskId: card.id } }),
        };
        toast.success(card.status === "backlog" ? "Task created" : "Task created and started", {
          description: card.title,
          action,
        });
      }
    },
  });
}
