import { useAgents } from "@/api/queries/agents";
import type { Project } from "@/api/types";
import { pickerTitle } from "@/model/agent-facts";
import { PERMISSION_MODES } from "@/model/permissions";
import { agentTitle } from "@/model/task-facts";
import { Field, Input, Select } from "@/ui/field";
import { Fields, Form } from "@/ui/form";
import { ListInput, NumberInput } from "@/ui/inputs";
import { Section } from "@/ui/page";
import { useProjectForm } from "./project-form";

const PLATFORM = "default";
const STUCK = [
  { value: "show", label: "Show a warning" },
  { value: "wake", label: "Interrupt the agent and tell it to continue" },
  { value: "ask", label: "Ask a person" },
  { value: "stop", label: "Stop the turn" },
];

export function AgentTab({ project }: { project: Project }) {
  const { settings, edit, form, errorAt } = useProjectForm(project);
  const agents = useAgents().data ?? [];
  const { agent } = settings;
  const { permissions } = agent;
  const platformDefault = project.settings.agent?.default
    ? undefined
    : agents.find((candidate) => candidate.name === project.defaultAgent);
  const chosen = agents.find((candidate) => candidate.name === agent.default);
  const editPermissions = (patch: Partial<typeof permissions>) =>
    edit("agent", { permissions: { ...permissions, ...patch } });
  return (
    <Form {...form}>
      <Section title="Agent" description="Used for tasks that do not choose an agent.">
        <Fields>
          <Field label="Default agent" error={errorAt("agent.default")}>
            {(control) => (
              <Select
                {...control}
                value={agent.default ?? PLATFORM}
                onChange={(name) => edit("agent", { default: name === PLATFORM ? null : name })}
                choices={[
                  {
                    value: PLATFORM,
                    label: `Platform default${platformDefault ? `: ${agentTitle(platformDefault)}` : ""}`,
                  },
                  ...agents.map((item) => ({
                    value: item.name,
                    label: pickerTitle(item, project.id),
                    detail: item.description,
                  })),
                  ...(agent.default && !chosen ? [{ value: agent.default, label: agent.default }] : []),
                ]}
              />
            )}
          </Field>
          <Field label="Model" hint="Leave empty for the provider's first model." error={errorAt("agent.model")}>
            {(control) => (
              <Input
                {...control}
                list="models-of-agent"
                spellCheck={false}
                value={agent.model ?? ""}
                onChange={(event) => edit("agent", { model: event.target.value || null })}
              />
            )}
          </Field>
          <datalist id="models-of-agent">
            {chosen?.models.map((model) => (
              <option key={model} value={model} />
            ))}
          </datalist>
          <Field label="Mode" hint="Leave empty for the agent's default." error={errorAt("agent.mode")}>
            {(control) => (
              <Input
                {...control}
                list="modes-of-agent"
                spellCheck={false}
                value={agent.mode ?? ""}
                onChange={(event) => edit("agent", { mode: event.target.value || null })}
              />
            )}
          </Field>
          <datalist id="modes-of-agent">
            {chosen?.modes.map((mode) => (
              <option key={mode} value={mode} />
            ))}
          </datalist>
        </Fields>
      </Section>
      <Section
        title="Permissions"
        description="What agents may do without asking. The patterns below are denied in every mode."
      >
        <Fields>
          <Field label="Allowed without asking" error={errorAt("agent.permissions.mode")}>
            {(control) => (
              <Select
                {...control}
                value={permissions.mode}
                onChange={(mode) => editPermissions({ mode: mode as typeof permissions.mode })}
                choices={[...PERMISSION_MODES]}
              />
            )}
          </Field>
          <Field
            label="Permission request timeout (seconds)"
            hint="If unanswered, the request is denied."
            error={errorAt("agent.permissions.timeoutSeconds")}
          >
            {(control) => (
              <NumberInput
                {...control}
                min={5}
                value={permissions.timeoutSeconds}
                onChange={(seconds) => editPermissions({ timeoutSeconds: seconds ?? 0 })}
              />
            )}
          </Field>
          <Field
            label="Always deny"
            className="sm:col-span-2"
            hint="Regular expressions, one per line, matched anywhere in a tool call's title, command, paths and input."
            error={errorAt("agent.permissions.deny")}
          >
            {(control) => (
              <ListInput
                {...control}
                mono
                placeholder="\brm -rf\b"
                value={permissions.deny}
                onChange={(deny) => editPermissions({ deny })}
              />
            )}
          </Field>
        </Fields>
      </Section>
      <Section title="Stuck agents">
        <Fields>
          <Field
            label="Stuck after (minutes)"
            hint="Minutes without output and CPU use."
            error={errorAt("agent.stuckMinutes")}
          >
            {(control) => (
              <NumberInput
                {...control}
                min={1}
                value={agent.stuckMinutes}
                onChange={(minutes) => edit("agent", { stuckMinutes: minutes ?? 0 })}
              />
            )}
          </Field>
          <Field label="When stuck" error={errorAt("agent.whenStuck")}>
            {(control) => (
              <Select
                {...control}
                value={agent.whenStuck}
                onChange={(then) => edit("agent", { whenStuck: then as typeof agent.whenStuck })}
                choices={STUCK}
              />
            )}
          </Field>
        </Fields>
      </Section>
    </Form>
  );
}
