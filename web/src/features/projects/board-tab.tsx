import type { Project } from "@/api/types";
import { COLUMNS } from "@/model/status-labels";
import { Field, Input, Select } from "@/ui/field";
import { Fields, Form } from "@/ui/form";
import { NumberInput } from "@/ui/inputs";
import { Section } from "@/ui/page";
import { type ProjectForm, useProjectForm } from "./project-form";

const LIMITED = ["backlog", "in_progress", "in_review"] as const;
const QUOTAS = [
  { name: "runningSandboxes", label: "Running sandboxes" },
  { name: "cpus", label: "Processors of running sandboxes" },
  { name: "memoryMb", label: "Memory of running sandboxes (MiB)" },
  { name: "diskMb", label: "Disk space of all sandboxes (MiB)" },
] as const;
const FINISHED = [
  { value: "destroy", label: "Delete" },
  { value: "pause", label: "Pause and keep" },
];

export function BoardTab({ project }: { project: Project }) {
  const projectForm = useProjectForm(project);
  const { settings, edit, form, errorAt } = projectForm;
  const { tasks } = settings;
  const limit = (column: string, most: number | null) => {
    const { [column]: _, ...others } = tasks.wipLimits;
    edit("tasks", { wipLimits: most === null ? others : { ...others, [column]: most } });
  };
  return (
    <Form {...form}>
      <Section title="Work in progress">
        <Fields>
          <Field
            label="Parallel attempts"
            hint="Further attempts of this project are queued."
            error={errorAt("tasks.parallel")}
          >
            {(control) => (
              <NumberInput
                {...control}
                min={1}
                value={tasks.parallel}
                onChange={(most) => edit("tasks", { parallel: most ?? 0 })}
              />
            )}
          </Field>
          {LIMITED.map((column) => (
            <Field
              key={column}
              label={`Card limit for ${COLUMNS[column].text}`}
              hint="Leave empty for no limit."
              error={errorAt(`tasks.wipLimits.${column}`)}
            >
              {(control) => (
                <NumberInput
                  {...control}
                  min={1}
                  value={tasks.wipLimits[column] ?? null}
                  onChange={(most) => limit(column, most)}
                />
              )}
            </Field>
          ))}
        </Fields>
      </Section>
      <Section
        title="Budgets"
        description="Limits for model usage. Leave empty for no limit. With a budget in US dollars, only models with a known price are used."
      >
        <Fields>
          <Budget projectForm={projectForm} which="budget" title="per task" />
          <Budget projectForm={projectForm} which="monthlyBudget" title="of the project per month" />
        </Fields>
      </Section>
      <Section
        title="Sandboxes"
        description="Limits for all sandboxes of the project together. Settings → Limits shows what they use."
      >
        <Fields>
          {QUOTAS.map(({ name, label }) => (
            <Field key={name} label={label} error={errorAt(`quotas.${name}`)}>
              {(control) => (
                <NumberInput
                  {...control}
                  min={1}
                  placeholder="no limit"
                  value={settings.quotas[name] ?? null}
                  onChange={(most) => edit("quotas", { [name]: most })}
                />
              )}
            </Field>
          ))}
        </Fields>
      </Section>
      <Section title="Issues, comments and checks">
        <Fields>
          <Field
            label="Issue label"
            hint="Issues with this label become tasks that start immediately. Leave empty to turn this off."
            error={errorAt("tasks.issueLabel")}
          >
            {(control) => (
              <Input
                {...control}
                value={tasks.issueLabel ?? ""}
                onChange={(event) => edit("tasks", { issueLabel: event.target.value || null })}
              />
            )}
          </Field>
          <Field
            label="Mention"
            hint="Pull request comments that contain this word are sent to the agent."
            error={errorAt("tasks.mention")}
          >
            {(control) => (
              <Input
                {...control}
                value={tasks.mention}
                onChange={(event) => edit("tasks", { mention: event.target.value })}
              />
            )}
          </Field>
          <Field
            label="Automatic feedback rounds"
            hint="How many times failed checks are sent to the agent automatically."
            error={errorAt("tasks.feedbackRounds")}
          >
            {(control) => (
              <NumberInput
                {...control}
                min={0}
                value={tasks.feedbackRounds}
                onChange={(rounds) => edit("tasks", { feedbackRounds: rounds ?? 0 })}
              />
            )}
          </Field>
          <Field label="Sandbox of a finished task" error={errorAt("tasks.finished")}>
            {(control) => (
              <Select
                {...control}
                value={tasks.finished}
                onChange={(what) => edit("tasks", { finished: what as typeof tasks.finished })}
                choices={FINISHED}
              />
            )}
          </Field>
        </Fields>
      </Section>
    </Form>
  );
}

function Budget({
  projectForm,
  which,
  title,
}: {
  projectForm: ProjectForm;
  which: "budget" | "monthlyBudget";
  title: string;
}) {
  const { settings, edit, errorAt } = projectForm;
  const budget = settings.tasks[which];
  return (
    <>
      <Field label={`Budget ${title} (USD)`} error={errorAt(`tasks.${which}.usd`)}>
        {(control) => (
          <NumberInput
            {...control}
            min={0}
            step="0.01"
            placeholder="no limit"
            value={budget.usd}
            onChange={(usd) => edit("tasks", { [which]: { ...budget, usd } })}
          />
        )}
      </Field>
      <Field label={`Budget ${title} (tokens)`} error={errorAt(`tasks.${which}.tokens`)}>
        {(control) => (
          <NumberInput
            {...control}
            min={1}
            placeholder="no limit"
            value={budget.tokens}
            onChange={(tokens) => edit("tasks", { [which]: { ...budget, tokens } })}
          />
        )}
      </Field>
    </>
  );
}
