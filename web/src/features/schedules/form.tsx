import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { api, got } from "@/api/client";
import { agents } from "@/api/queries";
import type { Project } from "@/api/types";
import { pickerTitle } from "@/features/agents/ready";
import { fault, overall } from "@/lib/problems";
import { Button } from "@/ui/button";
import { Field, Input, Select, Switch, Textarea } from "@/ui/field";
import { NumberInput } from "@/ui/inputs";
import { toast } from "@/ui/toast";
import { inWords, wrong } from "./cron";
import type { Schedule } from "./page";
import { When } from "./row";

const PLATFORM = "default";
const EXAMPLES = [
  { cron: "0 6 * * MON-FRI", label: "Weekdays at 6" },
  { cron: "0 3 * * *", label: "Every night" },
  { cron: "0 9 * * MON", label: "Mondays at 9" },
  { cron: "0 * * * *", label: "Every hour" },
];
const zones = () => ["UTC", ...Intl.supportedValuesOf("timeZone").filter((zone) => zone !== "UTC")];

/** Add or edit a schedule and its task. Other fields of the task (attempts, budget) are kept. */
export function ScheduleForm({
  schedule,
  projectId,
  projects,
  onDone,
}: {
  schedule: Schedule | undefined;
  projectId: string | undefined;
  projects: Project[];
  onDone: () => void;
}) {
  const client = useQueryClient();
  const known = useQuery(agents).data ?? [];
  const [form, setForm] = useState({
    projectId: schedule?.projectId ?? projectId ?? projects[0]?.id ?? "",
    name: schedule?.name ?? "",
    cron: schedule?.cron ?? "0 6 * * MON-FRI",
    timezone: schedule?.timezone ?? Intl.DateTimeFormat().resolvedOptions().timeZone ?? "UTC",
    title: schedule?.task.title ?? "",
    description: schedule?.task.description ?? "",
    agent: schedule?.task.agent ?? PLATFORM,
    model: schedule?.task.model ?? "",
    baseBranch: schedule?.task.baseBranch ?? "",
    priority: schedule?.task.priority ?? 0,
    start: schedule?.task.start ?? true,
  });
  const set = (patch: Partial<typeof form>) => setForm((now) => ({ ...now, ...patch }));
  const save = useMutation({
    mutationFn: () => {
      const task = {
        ...schedule?.task,
        title: form.title.trim(),
        description: form.description,
        agent: form.agent === PLATFORM ? null : form.agent,
        model: form.model.trim() || null,
        baseBranch: form.baseBranch.trim() || null,
        priority: form.priority,
        start: form.start,
      };
      const same = { name: form.name.trim(), cron: form.cron.trim(), timezone: form.timezone.trim(), task };
      return schedule
        ? got(
            api.PATCH("/api/v1/schedules/{schedule_id}", {
              params: { path: { schedule_id: schedule.id } },
              body: same,
            }),
          )
        : got(api.POST("/api/v1/schedules", { body: { ...same, projectId: form.projectId, enabled: true } }));
    },
    onSuccess: (saved) => {
      void client.invalidateQueries({ queryKey: ["schedules"] });
      toast.success(
        saved.nextAt ? (
          <>
            {saved.name}: next <When at={saved.nextAt} zone={saved.timezone} />
          </>
        ) : (
          `${saved.name} saved`
        ),
      );
      onDone();
    },
  });
  const at = (field: string) => fault(save.error, field);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (!save.isPending) save.mutate();
  };
  const unchanged = schedule && schedule.cron === form.cron.trim() && schedule.timezone === form.timezone.trim();
  return (
    <form onSubmit={submit} className="grid gap-3 sm:grid-cols-2" noValidate>
      <Field label="Name" error={at("name")}>
        {(wear) => (
          <Input
            {...wear}
            placeholder="nightly"
            value={form.name}
            onChange={(event) => set({ name: event.target.value })}
          />
        )}
      </Field>
      <Field label="Project" error={at("projectId")}>
        {(wear) => (
          <Select
            {...wear}
            disabled={Boolean(schedule)}
            value={form.projectId}
            onChange={(id) => set({ projectId: id })}
            choices={projects.map((one) => ({ value: one.id, label: one.name }))}
          />
        )}
      </Field>
      <Field
        label="Cron expression"
        error={wrong(form.cron) ?? at("cron")}
        hint={
          <span aria-live="polite">
            {inWords(form.cron) ?? "Checked when you save."}
            {unchanged && schedule.nextAt && (
              <>
                {" "}
                Next: <When at={schedule.nextAt} zone={schedule.timezone} />.
              </>
            )}
          </span>
        }
      >
        {(wear) => (
          <Input
            {...wear}
            className="font-mono"
            spellCheck={false}
            value={form.cron}
            onChange={(event) => set({ cron: event.target.value })}
          />
        )}
      </Field>
      <Field label="Time zone" error={at("timezone")}>
        {(wear) => (
          <Input
            {...wear}
            list="time-zones"
            spellCheck={false}
            value={form.timezone}
            onChange={(event) => set({ timezone: event.target.value })}
          />
        )}
      </Field>
      <datalist id="time-zones">
        {zones().map((zone) => (
          <option key={zone} value={zone} />
        ))}
      </datalist>
      <div className="flex flex-wrap gap-1.5 sm:col-span-2">
        {EXAMPLES.map((one) => (
          <Button key={one.cron} size="sm" look="ghost" onClick={() => set({ cron: one.cron })}>
            {one.label}
          </Button>
        ))}
      </div>
      <Field label="Task title" className="sm:col-span-2" error={at("task.title")}>
        {(wear) => (
          <Input
            {...wear}
            placeholder="Update the dependencies"
            value={form.title}
            onChange={(event) => set({ title: event.target.value })}
          />
        )}
      </Field>
      <Field label="What should the agent do?" className="sm:col-span-2" error={at("task.description")}>
        {(wear) => (
          <Textarea
            {...wear}
            rows={4}
            value={form.description}
            onChange={(event) => set({ description: event.target.value })}
          />
        )}
      </Field>
      <Field label="Agent" error={at("task.agent")}>
        {(wear) => (
          <Select
            {...wear}
            value={form.agent}
            onChange={(agent) => set({ agent })}
            choices={[
              { value: PLATFORM, label: "Project default" },
              ...known.map((one) => ({ value: one.name, label: pickerTitle(one, form.projectId) })),
            ]}
          />
        )}
      </Field>
      <Field label="Model" hint="Leave empty for the default." error={at("task.model")}>
        {(wear) => (
          <Input
            {...wear}
            spellCheck={false}
            value={form.model}
            onChange={(event) => set({ model: event.target.value })}
          />
        )}
      </Field>
      <Field label="Base branch" hint="Leave empty for the project's." error={at("task.baseBranch")}>
        {(wear) => (
          <Input
            {...wear}
            spellCheck={false}
            value={form.baseBranch}
            onChange={(event) => set({ baseBranch: event.target.value })}
          />
        )}
      </Field>
      <Field label="Priority" hint="Tasks with a higher priority start first." error={at("task.priority")}>
        {(wear) => (
          <NumberInput {...wear} value={form.priority} onChange={(priority) => set({ priority: priority ?? 0 })} />
        )}
      </Field>
      <div className="sm:col-span-2">
        <Switch
          checked={form.start}
          onChange={(start) => set({ start })}
          label="Start immediately instead of adding it to the backlog"
        />
      </div>
      {save.error && (
        <p role="alert" className="text-[13px] text-bad sm:col-span-2">
          {overall(save.error)}
        </p>
      )}
      <div className="flex justify-end gap-2 sm:col-span-2">
        <Button onClick={onDone}>Cancel</Button>
        <Button
          type="submit"
          look="primary"
          busy={save.isPending}
          disabled={!form.name.trim() || !form.title.trim() || !form.projectId || wrong(form.cron) !== null}
        >
          Save
        </Button>
      </div>
    </form>
  );
}
