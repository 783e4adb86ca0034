import { Plus, X } from "lucide-react";
import { useId } from "react";
import type { Agent, Project } from "@/api/types";
import { pickerTitle } from "@/model/agent-facts";
import { Button, IconButton } from "@/ui/button";
import { Field, Input, Select } from "@/ui/field";
import { type AttemptChoice, MAX_ATTEMPTS } from "./task-form";

const PROJECTS = "default";

/** The agent and model of each attempt. Several attempts run in parallel, to pick one. */
export function AttemptRows({
  rows,
  onChange,
  agents,
  project,
  errors,
  autoFocus = false,
}: {
  rows: AttemptChoice[];
  onChange: (rows: AttemptChoice[]) => void;
  agents: Agent[];
  project: Project | undefined;
  errors: Record<string, string>;
  /** Focus the agent of the first attempt. */
  autoFocus?: boolean;
}) {
  const set = (index: number, change: Partial<AttemptChoice>) =>
    onChange(rows.map((row, at) => (at === index ? { ...row, ...change } : row)));
  const several = rows.length > 1;
  return (
    <div className="flex flex-col gap-2">
      {rows.map((row, index) => (
        <AttemptRow
          key={index}
          row={row}
          number={several ? index + 1 : undefined}
          autoFocus={autoFocus && index === 0}
          onChange={(change) => set(index, change)}
          onRemove={several ? () => onChange(rows.filter((_, at) => at !== index)) : undefined}
          agents={agents}
          project={project}
          agentFault={errors[`attempts.${index}.agent`] ?? (several ? undefined : errors.agent)}
          modelFault={errors[`attempts.${index}.model`] ?? (several ? undefined : errors.model)}
        />
      ))}
      <div className="flex flex-wrap items-center gap-2">
        <Button
          size="sm"
          disabled={rows.length >= MAX_ATTEMPTS}
          onClick={() => onChange([...rows, { ...(rows.at(-1) as AttemptChoice) }])}
        >
          <Plus className="size-3.5" aria-hidden /> Add attempt
        </Button>
        <p className="text-xs text-faint">
          {several
            ? `${rows.length} attempts run in parallel; you pick one.`
            : "Run several attempts in parallel and pick one."}
        </p>
      </div>
      {errors.attempts && <p className="text-xs text-bad">{errors.attempts}</p>}
    </div>
  );
}

function AttemptRow({
  row,
  number,
  onChange,
  onRemove,
  agents,
  project,
  agentFault,
  modelFault,
  autoFocus,
}: {
  row: AttemptChoice;
  number: number | undefined;
  onChange: (change: Partial<AttemptChoice>) => void;
  onRemove: (() => void) | undefined;
  agents: Agent[];
  project: Project | undefined;
  agentFault: string | undefined;
  modelFault: string | undefined;
  autoFocus: boolean;
}) {
  const suggestions = useId();
  const usual = agents.find((candidate) => candidate.name === project?.defaultAgent);
  const agent = row.agent ? agents.find((candidate) => candidate.name === row.agent) : usual;
  const which = number ? ` of attempt ${number}` : "";
  return (
    <div className="flex flex-wrap items-end gap-2">
      {/* on a phone on a line of its own: half of it is too narrow for the agent's name */}
      <Field label={`Agent${which}`} className="min-w-0 flex-1 basis-full sm:basis-0" error={agentFault}>
        {(control) => (
          <Select
            {...control}
            autoFocus={autoFocus}
            value={row.agent || PROJECTS}
            onChange={(value) => onChange({ agent: value === PROJECTS ? "" : value, model: "" })}
            choices={[
              {
                value: PROJECTS,
                label: usual ? `Project default: ${pickerTitle(usual, project?.id)}` : "Project default",
              },
              ...agents.map((item) => ({
                value: item.name,
                label: pickerTitle(item, project?.id),
                detail: item.demo ? "follows written instructions" : undefined,
              })),
            ]}
          />
        )}
      </Field>
      <Field label={`Model${which}`} className="min-w-0 flex-1" error={modelFault}>
        {(control) => (
          <>
            <Input
              {...control}
              list={suggestions}
              value={row.model}
              maxLength={200}
              disabled={agent ? agent.apis.length === 0 : false}
              placeholder={agent && agent.apis.length === 0 ? "Not needed" : "Default model"}
              onChange={(event) => onChange({ model: event.target.value })}
            />
            <datalist id={suggestions}>
              {agent?.models.map((model) => (
                <option key={model} value={model} />
              ))}
            </datalist>
          </>
        )}
      </Field>
      {onRemove && (
        <IconButton label={`Remove attempt ${number}`} onClick={onRemove}>
          <X className="size-4" aria-hidden />
        </IconButton>
      )}
    </div>
  );
}
