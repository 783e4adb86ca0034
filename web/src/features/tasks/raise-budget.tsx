import { CircleDollarSign } from "lucide-react";
import { type FormEvent, useId, useState } from "react";
import { useProjects } from "@/api/queries/projects";
import { useUpdateTask } from "@/api/queries/tasks";
import type { Task } from "@/api/types";
import { BudgetHelp } from "@/features/projects/budget-help";
import { count, formatCost } from "@/lib/format";
import { spentLimitOf } from "@/model/budgets";
import { spentOn } from "@/model/task-facts";
import { Button } from "@/ui/button";
import { Dialog } from "@/ui/dialog";
import { Field, Input } from "@/ui/field";
import { errorMessage } from "@/ui/states";
import { useTaskActions } from "./use-task-actions";

/** Raise the budget of a task that has spent it, and retry. If another limit is used up, link to that setting instead. */
export function RaiseBudget({ task, sentence }: { task: Task; sentence: string }) {
  const [open, setOpen] = useState(false);
  if (spentLimitOf(sentence) !== "task") return <BudgetHelp sentence={sentence} projectId={task.projectId} />;
  return (
    <>
      <Button size="sm" look="primary" onClick={() => setOpen(true)}>
        <CircleDollarSign className="size-3.5" aria-hidden /> Raise the budget
      </Button>
      {open && <BudgetDialog task={task} onClose={() => setOpen(false)} />}
    </>
  );
}

function BudgetDialog({ task, onClose }: { task: Task; onClose: () => void }) {
  const form = useId();
  const update = useUpdateTask();
  const { retry } = useTaskActions();
  const projectBudget = useProjects().data?.find((project) => project.id === task.projectId)?.settings.tasks?.budget;
  const budget = task.budget.usd || task.budget.tokens ? task.budget : projectBudget;
  const spent = spentOn(task);
  const tokens = task.attempts.reduce((sum, { spent }) => sum + spent.inputTokens + spent.outputTokens, 0);
  const [draft, setDraft] = useState<{ usd?: string; tokens?: string }>({});
  const usd = draft.usd ?? String(budget?.usd ?? "");
  const tokenLimit = draft.tokens ?? String(budget?.tokens ?? "");
  const errors = {
    usd:
      budget?.usd && !(Number(usd) > (spent?.usd ?? 0))
        ? `Enter more than the ${formatCost(spent?.usd, spent?.estimated)} already spent.`
        : undefined,
    tokens:
      budget?.tokens && !(Number(tokenLimit) > tokens)
        ? `Enter more than the ${count(tokens)} already used.`
        : undefined,
  };
  const [tried, setTried] = useState(false);
  const error = update.error ?? retry.error;
  const save = async () => {
    try {
      const limits = { usd: Number(usd) || null, tokens: Number(tokenLimit) || null };
      await update.mutateAsync({ id: task.id, budget: limits });
      await retry.mutateAsync({ id: task.id });
      onClose();
    } catch {
      // the error is shown in the dialog
    }
  };
  const submit = (event: FormEvent) => {
    event.preventDefault();
    setTried(true);
    if (!errors.usd && !errors.tokens) void save();
  };
  return (
    <Dialog
      open
      onOpenChange={(open) => !open && onClose()}
      title="Raise the budget of this task"
      description="The task then continues. Other tasks keep the project's budget."
      footer={
        <>
          <Button onClick={onClose}>Cancel</Button>
          <Button look="primary" type="submit" form={form} busy={update.isPending || retry.isPending}>
            Save and retry
          </Button>
        </>
      }
    >
      <form id={form} noValidate onSubmit={submit} className="flex flex-col gap-3">
        {error && (
          <p role="alert" className="rounded-md bg-bad-soft px-2.5 py-1.5 text-[13px] text-bad">
            {errorMessage(error)}
          </p>
        )}
        {(budget?.usd || !budget?.tokens) && (
          <Field
            label="Budget (USD)"
            hint={spent ? `Spent so far: ${formatCost(spent.usd, spent.estimated)}` : undefined}
            error={tried ? errors.usd : undefined}
          >
            {(control) => (
              <Input
                {...control}
                autoFocus
                inputMode="decimal"
                value={usd}
                onChange={(event) => setDraft({ ...draft, usd: event.target.value })}
              />
            )}
          </Field>
        )}
        {budget?.tokens && (
          <Field
            label="Budget (tokens)"
            hint={`Used so far: ${count(tokens)}`}
            error={tried ? errors.tokens : undefined}
          >
            {(control) => (
              <Input
                {...control}
                inputMode="numeric"
                value={tokenLimit}
                onChange={(event) => setDraft({ ...draft, tokens: event.target.value })}
              />
            )}
          </Field>
        )}
      </form>
    </Dialog>
  );
}
