import { fieldError } from "@/api/errors";
import { useAgents } from "@/api/queries/agents";
import { useSaveSchedule } from "@/api/queries/schedules";
import type { Project, Schedule } from "@/api/types";
import { pickerTitle } from "@/model/agent-facts";
import { Button } from "@/ui/button";
import { Field, Input, Select, Switch, Textarea } from "@/ui/field";
import { SubmitForm, useFormState } from "@/ui/form";
import { NumberInput } from "@/ui/inputs";
import { toast } from "@/ui/toast";
import { cronError, describeCron } from "./cron";
import { ScheduledTime } from "./scheduled-time";

const PROJECT_DEFAULT = "default";
const EXAMPLES = [
  { cron: "0 6 * * MON-FRI", label: "Weekdays at 6" },
  { cron: "0 3 * * *", label: "Every night" },
  { cron: "0 9 * * MON", label: "Mondays at 9" },
  { cron: "0 * * * *", label: "Every hour" },
];
const timeZones = () => ["UTC", ...Intl.supportedValuesOf("timeZone").filter((zone) => zone !== "UTC")];

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
  const agents = useAgents().data ?? [];
  const [form, set] = useFormState({
    projectId: schedule?.projectId ?? projectId ?? projects[0]?.id ?? "",
    name: schedule?.name ?? "",
    cron: schedule?.cron ?? "0 6 * * MON-FRI",
    timezone: schedule?.timezone ?? Intl.DateTimeFormat().resolvedOptions().timeZone ?? "UTC",
    title: schedule?.task.title ?? "",
    description: schedule?.task.description ?? "",
    agent: schedule?.task.agent ?? PROJECT_DEFAULT,
    model: schedule?.task.model ?? "",
    baseBranch: schedule?.task.baseBranch ?? "",
    priority: schedule?.task.priority ?? 0,
    start: schedule?.task.start ?? true,
  });
  const save = useSaveSchedule({
    onSuccess: (saved) => {
      toast.success(
        saved.nextAt ? (
          <>
            {saved.name}: next <ScheduledTime at={saved.nextAt} zone={saved.timezone} />
          </>
        ) : (
          `${saved.name} saved`
        ),
      );
      onDone();
    },
  });
  const errorAt = (field: string) => fieldError(save.error, field);
  const submit = () =>
    save.mutate({
      id: schedule?.id,
      projectId: form.projectId,
      name: form.name.trim(),
      cron: form.cron.trim(),
      timezone: form.timezone.trim(),
      task: {
        ...schedule?.task,
        title: form.title.trim(),
        description: form.description,
        agent: form.agent === PROJECT_DEFAULT ? null : form.agent,
        model: form.model.trim() || null,
        baseBranch: form.baseBranch.trim() || null,
        priority: form.priority,
        start: form.start,
      },
    });
  const unchanged = schedule && schedule.cron === form.cron.trim() && schedule.timezone === form.timezone.trim();
  return (
    <SubmitForm
      columns
      busy={save.isPending}
      error={save.error}
      ready={Boolean(form.name.trim() && form.title.trim() && form.projectId) && cronError(form.cron) === null}
      submitLabel="Save"
      onSubmit={submit}
      onCancel={onDone}
    >
      <Field label="Name" error={errorAt("name")}>
        {(control) => (
          <Input
            {...control}
            placeholder="nightly"
            value={form.name}
            onChange={(event) => set({ name: event.target.value })}
          />
        )}
      </Field>
      <Field label="Project" error={errorAt("projectId")}>
        {(control) => (
          <Select
            {...control}
            disabled={Boolean(schedule)}
            value={form.projectId}
            onChange={(id) => set({ projectId: id })}
            choices={projects.map((project) => ({ value: project.id, label: project.name }))}
          />
        )}
      </Field>
      <Field
        label="Cron expression"
        error={cronError(form.cron) ?? errorAt("cron")}
        hint={
          <span aria-live="polite">
            {describeCron(form.cron) ?? "Checked when you save."}
            {unchanged && schedule.nextAt && (
              <>
                {" "}
                Next: <ScheduledTime at={schedule.nextAt} zone={schedule.timezone} />.
              </>
            )}
          </span>
        }
      >
        {(control) => (
          <Input
            {...control}
            className="font-mono"
            spellCheck={false}
            value={form.cron}
            onChange={(event) => set({ cron: event.target.value })}
          />
        )}
      </Field>
      <Field label="Time zone" error={errorAt("timezone")}>
        {(control) => (
          <Input
            {...control}
            list="time-zones"
            spellCheck={false}
            value={form.timezone}
            onChange={(event) => set({ timezone: event.target.value })}
          />
        )}
      </Field>
      <datalist id="time-zones">
        {timeZones().map((zone) => (
          <option key={zone} value={zone} />
        ))}
      </datalist>
      <div className="flex flex-wrap gap-1.5 sm:col-span-2">
        {EXAMPLES.map((example) => (
          <Button key={example.cron} size="sm" look="ghost" onClick={() => set({ cron: example.cron })}>
            {example.label}
          </Button>
        ))}
      </div>
      <Field label="Task title" className="sm:col-span-2" error={errorAt("task.title")}>
        {(control) => (
          <Input
            {...control}
            placeholder="Update the dependencies"
            value={form.title}
            onChange={(event) => set({ title: event.target.value })}
          />
        )}
      </Field>
      <Field label="What should the agent do?" className="sm:col-span-2" error={errorAt("task.description")}>
        {(control) => (
          <Textarea
            {...control}
            rows={4}
            value={form.description}
            onChange={(event) => set({ description: event.target.value })}
          />
        )}
      </Field>
      <Field label="Agent" error={errorAt("task.agent")}>
        {(control) => (
          <Select
            {...control}
            value={form.agent}
            onChange={(agent) => set({ agent })}
            choices={[
              { value: PROJECT_DEFAULT, label: "Project default" },
              ...agents.map((agent) => ({ value: agent.name, label: pickerTitle(agent, form.projectId) })),
            ]}
          />
        )}
      </Field>
      <Field label="Model" hint="Leave empty for the default." error={errorAt("task.model")}>
        {(control) => (
          <Input
            {...control}
            spellCheck={false}
            value={form.model}
            onChange={(event) => set({ model: event.target.value })}
          />
        )}
      </Field>
      <Field label="Base branch" hint="Leave empty for the project's." error={errorAt("task.baseBranch")}>
        {(control) => (
          <Input
            {...control}
            spellCheck={false}
            value={form.baseBranch}
            onChange={(event) => set({ baseBranch: event.target.value })}
          />
        )}
      </Field>
      <Field label="Priority" hint="Tasks with a higher priority start first." error={errorAt("task.priority")}>
        {(control) => (
          <NumberInput {...control} value={form.priority} onChange={(priority) => set({ priority: priority ?? 0 })} />
        )}
      </Field>
      <div className="sm:col-span-2">
        <Switch
          checked={form.start}
          onChange={(start) => set({ start })}
          label="Start immediately instead of adding it to the backlog"
        />
      </div>
    </SubmitForm>
  );
}
