import type { Schemas } from "@/api/client";
import { fieldError } from "@/api/errors";
import { useSaveAgent } from "@/api/queries/agents";
import type { Agent } from "@/api/types";
import { formatEnv, formatLine, parseEnv, parseLine } from "@/lib/env-lines";
import { Checkbox, Field, Input, Textarea } from "@/ui/field";
import { SubmitForm, useFormState } from "@/ui/form";
import { ListInput, NumberInput } from "@/ui/inputs";
import { toast } from "@/ui/toast";

const APIS: { value: Schemas["ModelApi"]; label: string }[] = [
  { value: "anthropic", label: "Anthropic Messages" },
  { value: "openai", label: "OpenAI Responses" },
  { value: "openai_chat", label: "OpenAI Chat Completions" },
  { value: "gemini", label: "Gemini" },
];
const PLACEHOLDERS = "{model}, {base_url}, {capability}, {folder} and {home} are replaced.";

/** Add or edit a custom agent. Fields of an existing agent that are not shown here are kept. */
export function AgentForm({ agent, onDone }: { agent: Agent | undefined; onDone: () => void }) {
  const definition = agent?.definition;
  const [form, set] = useFormState({
    name: agent?.name ?? "",
    title: agent?.title ?? "",
    description: definition?.description ?? "",
    argv: (definition?.argv ?? []).map(formatLine),
    script: definition?.install?.script ?? "",
    check: definition?.install?.check ?? "",
    timeout: definition?.install?.timeoutSeconds ?? 900,
    envs: formatEnv(definition?.envs ?? {}),
    apis: definition?.apis ?? [],
    models: definition?.models ?? [],
    modes: definition?.modes ?? [],
    authMethod: definition?.authMethod ?? "",
  });
  const envs = parseEnv(form.envs);
  const save = useSaveAgent({
    onSuccess: (saved) => {
      toast.success(`${saved.title} saved`);
      onDone();
    },
  });
  const errorAt = (field: string) => fieldError(save.error, field);
  const toggle = (modelApi: Schemas["ModelApi"], on: boolean) =>
    set({ apis: on ? [...form.apis, modelApi] : form.apis.filter((api) => api !== modelApi) });
  const submit = () => {
    if (typeof envs === "string") return; // the error is shown at the field
    const changed: Schemas["Definition"] = {
      ...definition,
      description: form.description,
      argv: form.argv.map(parseLine),
      install: form.script.trim() ? { script: form.script, check: form.check, timeoutSeconds: form.timeout } : null,
      envs,
      apis: form.apis,
      models: form.models,
      modes: form.modes,
      authMethod: form.authMethod || null,
    };
    const body = { definition: changed, ...(form.title.trim() && { title: form.title.trim() }) };
    save.mutate({ name: agent?.name ?? form.name.trim(), exists: agent !== undefined, body });
  };
  return (
    <SubmitForm
      columns
      busy={save.isPending}
      error={save.error}
      ready={Boolean(form.name.trim() && form.argv.length) && typeof envs !== "string"}
      submitLabel="Save"
      onSubmit={submit}
      onCancel={onDone}
    >
      <Field
        label="Name"
        hint="Lowercase letters, digits and hyphens. Cannot be changed later."
        error={errorAt("name")}
      >
        {(control) => (
          <Input
            {...control}
            disabled={Boolean(agent)}
            spellCheck={false}
            placeholder="my-agent"
            value={form.name}
            onChange={(event) => set({ name: event.target.value })}
          />
        )}
      </Field>
      <Field label="Title" error={errorAt("title")}>
        {(control) => (
          <Input
            {...control}
            placeholder={form.name || "My agent"}
            value={form.title}
            onChange={(event) => set({ title: event.target.value })}
          />
        )}
      </Field>
      <Field label="Description" className="sm:col-span-2" error={errorAt("definition.description")}>
        {(control) => (
          <Input {...control} value={form.description} onChange={(event) => set({ description: event.target.value })} />
        )}
      </Field>
      <Field
        label="Command"
        hint={`The program and its arguments, one per line, run without a shell. ${PLACEHOLDERS}`}
        error={errorAt("definition.argv")}
      >
        {(control) => (
          <ListInput
            {...control}
            mono
            rows={5}
            placeholder={"my-agent\nacp\n--model\n{model}"}
            value={form.argv}
            onChange={(argv) => set({ argv })}
          />
        )}
      </Field>
      <Field
        label="Environment variables"
        hint="NAME=value, one per line. Not secret: model keys stay with the platform, so use {base_url} and {capability}."
        error={typeof envs === "string" ? envs : errorAt("definition.envs")}
      >
        {(control) => (
          <ListInput
            {...control}
            mono
            rows={5}
            placeholder={"OPENAI_BASE_URL={base_url}/v1\nOPENAI_API_KEY={capability}"}
            value={form.envs}
            onChange={(lines) => set({ envs: lines })}
          />
        )}
      </Field>
      <Field
        label="Install script"
        className="sm:col-span-2"
        hint="A Bash script, run once in a sandbox that lacks the agent. Leave empty if the template contains it. Pin the versions it installs."
        error={errorAt("definition.install.script")}
      >
        {(control) => (
          <Textarea
            {...control}
            rows={3}
            spellCheck={false}
            className="font-mono !text-xs"
            placeholder="npm install --global my-agent@1.2.3"
            value={form.script}
            onChange={(event) => set({ script: event.target.value })}
          />
        )}
      </Field>
      {form.script.trim() && (
        <>
          <Field label="Skip the install if this command succeeds" error={errorAt("definition.install.check")}>
            {(control) => (
              <Input
                {...control}
                spellCheck={false}
                className="font-mono !text-xs"
                placeholder="command -v my-agent"
                value={form.check}
                onChange={(event) => set({ check: event.target.value })}
              />
            )}
          </Field>
          <Field label="Install timeout (seconds)" error={errorAt("definition.install.timeoutSeconds")}>
            {(control) => (
              <NumberInput
                {...control}
                min={1}
                value={form.timeout}
                onChange={(timeout) => set({ timeout: timeout ?? 0 })}
              />
            )}
          </Field>
        </>
      )}
      <fieldset className="sm:col-span-2">
        <legend className="mb-1 text-[13px] font-medium">Supported model APIs, preferred first</legend>
        <div className="flex flex-wrap gap-x-4 gap-y-2">
          {APIS.map((api) => (
            <Checkbox
              key={api.value}
              checked={form.apis.includes(api.value)}
              onChange={(on) => toggle(api.value, on)}
              label={form.apis.includes(api.value) ? `${form.apis.indexOf(api.value) + 1}. ${api.label}` : api.label}
            />
          ))}
        </div>
        <p className="mt-1 text-xs text-faint">
          Select them in order of preference, or none if the agent needs no model.
        </p>
      </fieldset>
      <Field
        label="Models"
        hint="Models that the agent is known to work with, one per line."
        error={errorAt("definition.models")}
      >
        {(control) => (
          <ListInput {...control} mono rows={3} value={form.models} onChange={(models) => set({ models })} />
        )}
      </Field>
      <Field label="Modes" hint="One per line." error={errorAt("definition.modes")}>
        {(control) => <ListInput {...control} mono rows={3} value={form.modes} onChange={(modes) => set({ modes })} />}
      </Field>
      <Field
        label="Authentication method"
        hint="The ACP authentication method that the agent requires after initialization. Most agents require none."
        error={errorAt("definition.authMethod")}
      >
        {(control) => (
          <Input
            {...control}
            spellCheck={false}
            value={form.authMethod}
            onChange={(event) => set({ authMethod: event.target.value })}
          />
        )}
      </Field>
    </SubmitForm>
  );
}
