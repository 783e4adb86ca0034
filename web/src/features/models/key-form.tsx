import { type FormEvent, useState } from "react";
import type { Schemas } from "@/api/client";
import { fieldError, formError } from "@/api/errors";
import { useCurrentUser } from "@/api/queries/account";
import { useAddModelKey, useModelPresets } from "@/api/queries/models";
import { useProject } from "@/api/queries/projects";
import type { Agent } from "@/api/types";
import { sanitizeHref } from "@/lib/links";
import { findingsOf } from "@/model/connection-test";
import { Button } from "@/ui/button";
import { Field, Input, Select } from "@/ui/field";
import { SecretInput } from "@/ui/inputs";
import { Loaded } from "@/ui/states";
import { toast } from "@/ui/toast";
import { describeKey } from "./key-description";

/** "Codex needs an OpenAI key" */
export function KeyTitle({ agent }: { agent: Agent }) {
  const usablePresets = useModelPresets().data?.items.filter((preset) => preset.agents.includes(agent.name));
  return (
    <h2 className="font-semibold">
      {agent.title} needs {describeKey(usablePresets ?? [])}
    </h2>
  );
}

type Preset = Schemas["ModelPresetView"];

/** Return the scope in which the user may add a key: for everybody, for the project they own, or none. Undefined while loading. */
export function useKeyScope(projectId: string | undefined): "everybody" | "project" | "none" | undefined {
  const user = useCurrentUser();
  const project = useProject(projectId ?? "", { enabled: projectId !== undefined });
  if (!user) return undefined;
  if (user.role === "admin") return "everybody";
  if (projectId === undefined) return "none";
  if (!project.data) return project.isError ? "none" : undefined;
  return project.data.ownerId === user.id ? "project" : "none";
}

/** Shown to people who may not add a key. */
export function AskForKey({ projectId }: { projectId: string | undefined }) {
  return (
    <p className="text-[13px] text-soft">Ask an administrator{projectId && " or the project's owner"} to add a key.</p>
  );
}

/** Test and save the key of a provider that the agent can use. Administrators add it for everybody, others for their project. */
export function KeyForm({
  agent,
  projectId,
  onDone,
}: {
  agent: Agent;
  projectId: string | undefined;
  onDone: () => void;
}) {
  const query = useModelPresets();
  const scope = useKeyScope(projectId);
  return (
    <Loaded query={query}>
      {(found) => {
        const usablePresets = found.items.filter((preset) => preset.agents.includes(agent.name));
        if (scope === undefined) return null;
        if (scope === "none") return <AskForKey projectId={projectId} />;
        return (
          <KeyFields presets={usablePresets} projectId={scope === "project" ? projectId : undefined} onDone={onDone} />
        );
      }}
    </Loaded>
  );
}

function KeyFields({
  presets,
  projectId,
  onDone,
}: {
  presets: Preset[];
  projectId: string | undefined;
  onDone: () => void;
}) {
  const [name, setName] = useState(presets[0]?.name ?? "");
  const [key, setKey] = useState("");
  const [address, setAddress] = useState<string | null>(null);
  const preset = presets.find((candidate) => candidate.name === name);
  const save = useAddModelKey({
    onSuccess: (added) => {
      toast.success(`${preset?.title ?? added.name} key saved`);
      onDone();
    },
  });
  const submit = (test: boolean) =>
    save.mutate({
      preset: name,
      test,
      ...(key.trim() && { key: key.trim() }),
      ...(address?.trim() && { baseUrl: address.trim() }),
      ...(projectId && { projectId }),
    });
  if (!preset) return <p className="text-[13px] text-soft">Add a model provider whose API this agent supports.</p>;
  const onSubmit = (event: FormEvent) => {
    event.preventDefault();
    event.stopPropagation();
    if (!save.isPending) submit(true);
  };
  const link = sanitizeHref(preset.keyUrl ?? undefined);
  return (
    <form
      onSubmit={onSubmit}
      onKeyDown={(event) => event.stopPropagation()} // Ctrl+Enter must not submit the form that this one was opened from
      className="grid gap-3 sm:grid-cols-2"
      noValidate
      aria-label="Model provider key"
    >
      <Field label="Provider" hint={projectId ? "For this project." : "For all users."}>
        {(control) => (
          <Select
            {...control}
            value={name}
            onChange={(value) => {
              setName(value);
              setAddress(null);
              save.reset();
            }}
            choices={presets.map((item) => ({ value: item.name, label: item.title, detail: item.baseUrl }))}
          />
        )}
      </Field>
      <Field label="Base URL" error={fieldError(save.error, "baseUrl")}>
        {(control) => (
          <Input
            {...control}
            spellCheck={false}
            value={address ?? preset.baseUrl}
            onChange={(event) => setAddress(event.target.value)}
          />
        )}
      </Field>
      <Field
        label="API key"
        className="sm:col-span-2"
        hint={
          preset.keyRequired
            ? "Write-only: stored encrypted, never shown again and never passed to a sandbox."
            : "Optional: this server needs no key by default."
        }
        error={fieldError(save.error, "key")}
      >
        {(control) => (
          <SecretInput {...control} autoFocus value={key} onChange={(event) => setKey(event.target.value)} />
        )}
      </Field>
      {save.error && (
        <p role="alert" className="text-[13px] break-words text-bad sm:col-span-2">
          {formError(save.error)}
        </p>
      )}
      <div className="flex flex-wrap items-center gap-2 sm:col-span-2">
        <Button type="submit" look="primary" busy={save.isPending} disabled={preset.keyRequired && !key.trim()}>
          Test and save
        </Button>
        {findingsOf(save.error) && <Button onClick={() => submit(false)}>Save without testing</Button>}
        {link && (
          <a href={link} target="_blank" rel="noreferrer noopener" className="text-[13px] text-accent underline">
            Get a key from {preset.title}
          </a>
        )}
      </div>
    </form>
  );
}
