import { useMutation, useQueryClient } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { api, got, type Schemas } from "@/api/client";
import type { Agent } from "@/api/types";
import { fault, overall } from "@/lib/problems";
import { Button } from "@/ui/button";
import { Checkbox, Field, Input, Textarea } from "@/ui/field";
import { ListInput, NumberInput } from "@/ui/inputs";
import { toast } from "@/ui/toast";
import { asLine, asLines, envsOf, wordOf } from "./envs";

const APIS: { value: Schemas["ModelApi"]; label: string }[] = [
  { value: "anthropic", label: "Anthropic Messages" },
  { value: "openai", label: "OpenAI Responses" },
  { value: "openai_chat", label: "OpenAI Chat Completions" },
  { value: "gemini", label: "Gemini" },
];
const PLACEHOLDERS = "{model}, {base_url}, {capability}, {folder} and {home} are replaced.";

/** Add or edit a custom agent. Fields of an existing agent that are not shown here are kept. */
export function AgentForm({ agent, onDone }: { agent: Agent | undefined; onDone: () => void }) {
  const client = useQueryClient();
  const known = agent?.definition;
  const [form, setForm] = useState({
    name: agent?.name ?? "",
    title: agent?.title ?? "",
    description: known?.description ?? "",
    argv: (known?.argv ?? []).map(asLine),
    script: known?.install?.script ?? "",
    check: known?.install?.check ?? "",
    timeout: known?.install?.timeoutSeconds ?? 900,
    envs: asLines(known?.envs ?? {}),
    apis: known?.apis ?? [],
    models: known?.models ?? [],
    modes: known?.modes ?? [],
    authMethod: known?.authMethod ?? "",
  });
  const set = (patch: Partial<typeof form>) => setForm((now) => ({ ...now, ...patch }));
  const envs = envsOf(form.envs);
  const save = useMutation({
    mutationFn: () => {
      if (typeof envs === "string") throw new Error(envs);
      const definition: Schemas["Definition"] = {
        ...known,
        description: form.description,
        argv: form.argv.map(wordOf),
        install: form.script.trim() ? { script: form.script, check: form.check, timeoutSeconds: form.timeout } : null,
        envs,
        apis: form.apis,
        models: form.models,
        modes: form.modes,
        authMethod: form.authMethod || null,
      };
      const body = { definition, ...(form.title.trim() && { title: form.title.trim() }) };
      return agent
        ? got(api.PUT("/api/v1/agents/{agent_name}", { params: { path: { agent_name: agent.name } }, body }))
        : got(api.POST("/api/v1/agents", { body: { ...body, name: form.name.trim() } }));
    },
    onSuccess: (saved) => {
      void client.invalidateQueries({ queryKey: ["agents"] });
      toast.success(`${saved.title} saved`);
      onDone();
    },
  });
  const at = (field: string) => fault(save.error, field);
  const toggle = (api_: Schemas["ModelApi"], on: boolean) =>
    set({ apis: on ? [...form.apis, api_] : form.apis.filter((one) => one !== api_) });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (!save.isPending) save.mutate();
  };
  return (
    <form onSubmit={submit} className="grid gap-3 sm:grid-cols-2" noValidate>
      <Field label="Name" hint="Lowercase letters, digits and dashes. Cannot be changed later." error={at("name")}>
        {(wear) => (
          <Input
            {...wear}
            disabled={Boolean(agent)}
            spellCheck={false}
            placeholder="my-agent"
            value={form.name}
            onChange={(event) => set({ name: event.target.value })}
          />
        )}
      </Field>
      <Field label="Title" error={at("title")}>
        {(wear) => (
          <Input
            {...wear}
            placeholder={form.name || "My agent"}
            value={form.title}
            onChange={(event) => set({ title: event.target.value })}
          />
        )}
      </Field>
      <Field label="Description" className="sm:col-span-2" error={at("definition.description")}>
        {(wear) => (
          <Input {...wear} value={form.description} onChange={(event) => set({ description: event.target.value })} />
        )}
      </Field>
      <Field
        label="Command"
        hint={`The program and its arguments, one per line, run without a shell. ${PLACEHOLDERS}`}
        error={at("definition.argv")}
      >
        {(wear) => (
          <ListInput
            {...wear}
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
        error={typeof envs === "string" ? envs : at("definition.envs")}
      >
        {(wear) => (
          <ListInput
            {...wear}
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
        error={at("definition.install.script")}
      >
        {(wear) => (
          <Textarea
            {...wear}
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
          <Field label="Skip the install if this command succeeds" error={at("definition.install.check")}>
            {(wear) => (
              <Input
                {...wear}
                spellCheck={false}
                className="font-mono !text-xs"
                placeholder="command -v my-agent"
                value={form.check}
                onChange={(event) => set({ check: event.target.value })}
              />
            )}
          </Field>
          <Field label="Install timeout (seconds)" error={at("definition.install.timeoutSeconds")}>
            {(wear) => (
              <NumberInput
                {...wear}
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
          {APIS.map((one) => (
            <Checkbox
              key={one.value}
              checked={form.apis.includes(one.value)}
              onChange={(on) => toggle(one.value, on)}
              label={form.apis.includes(one.value) ? `${form.apis.indexOf(one.value) + 1}. ${one.label}` : one.label}
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
        error={at("definition.models")}
      >
        {(wear) => <ListInput {...wear} mono rows={3} value={form.models} onChange={(models) => set({ models })} />}
      </Field>
      <Field label="Modes" hint="One per line." error={at("definition.modes")}>
        {(wear) => <ListInput {...wear} mono rows={3} value={form.modes} onChange={(modes) => set({ modes })} />}
      </Field>
      <Field
        label="Authentication method"
        hint="The ACP authentication method that the agent requires after initialization. Most agents require none."
        error={at("definition.authMethod")}
      >
        {(wear) => (
          <Input
            {...wear}
            spellCheck={false}
            value={form.authMethod}
            onChange={(event) => set({ authMethod: event.target.value })}
          />
        )}
      </Field>
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
          disabled={!form.name.trim() || !form.argv.length || typeof envs === "string"}
        >
          Save
        </Button>
      </div>
    </form>
  );
}
