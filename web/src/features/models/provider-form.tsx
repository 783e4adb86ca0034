import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { api, got, type Schemas } from "@/api/client";
import { presets as presetsQuery } from "@/api/queries";
import { findingsOf } from "@/features/projects/findings";
import { fault, overall } from "@/lib/problems";
import { Button } from "@/ui/button";
import { Checkbox, Field, Input, Select } from "@/ui/field";
import { ListInput, SecretInput } from "@/ui/inputs";
import { toast } from "@/ui/toast";
import { asLines, parsed } from "./prices";

type Provider = Schemas["ModelProviderView"];
type Kind = Schemas["ModelApi"];

/** The platform's hint for a provider without a key. */
export const NO_KEY = "no key";

export const KIND_NAMES: Record<Kind, string> = {
  anthropic: "Anthropic",
  openai: "OpenAI",
  openai_chat: "OpenAI-compatible",
  gemini: "Gemini",
};
const KINDS: { value: Kind; label: string; detail: string }[] = [
  { value: "anthropic", label: KIND_NAMES.anthropic, detail: "POST /v1/messages" },
  { value: "openai", label: KIND_NAMES.openai, detail: "POST /v1/responses" },
  { value: "openai_chat", label: KIND_NAMES.openai_chat, detail: "POST /v1/chat/completions" },
  { value: "gemini", label: KIND_NAMES.gemini, detail: "POST /v1beta/models/…" },
];

type Preset = Schemas["ModelPresetView"];
/** A provider without a preset. */
const OTHER = "other";

/** Add or edit a model provider. A stored key can only be replaced or removed. */
export function ProviderForm({
  provider,
  projectId,
  onDone,
}: {
  provider: Provider | undefined;
  projectId: string | undefined;
  onDone: () => void;
}) {
  const client = useQueryClient();
  const [form, setForm] = useState({
    name: provider?.name ?? "",
    kind: provider?.kind ?? ("anthropic" as Kind),
    baseUrl: provider?.baseUrl ?? "",
    key: "",
    dropKey: false,
    models: provider?.models ?? [],
    prices: asLines(provider?.prices ?? {}),
  });
  const presets = useQuery({ ...presetsQuery, enabled: !provider }).data;
  const [presetName, setPresetName] = useState(OTHER);
  const preset = presets?.items.find((one) => one.name === presetName);
  const keyed = provider !== undefined && provider.hint !== NO_KEY;
  const set = (patch: Partial<typeof form>) => setForm((now) => ({ ...now, ...patch }));
  const choosePreset = (name: string) => {
    setPresetName(name);
    const chosen = presets?.items.find((one) => one.name === name);
    set(chosen ? filled(chosen) : { name: "", baseUrl: "", models: [], prices: [] });
  };
  const prices = parsed(form.prices);
  const save = useMutation({
    mutationFn: (test: boolean) => {
      if (typeof prices === "string") throw new Error(prices);
      const same = {
        name: form.name.trim(),
        ...(form.baseUrl.trim() && { baseUrl: form.baseUrl.trim() }),
        ...(form.key && { key: form.key }),
        models: form.models,
        prices,
        test,
      };
      return provider
        ? got(
            api.PATCH("/api/v1/model-providers/{provider_id}", {
              params: { path: { provider_id: provider.id } },
              body: { ...same, ...(form.dropKey && !form.key && { key: null }) },
            }),
          )
        : got(
            api.POST("/api/v1/model-providers", {
              body: {
                ...same,
                kind: form.kind,
                ...(preset && !form.models.length && { preset: preset.name }), // the platform then asks the provider for its models
                ...(projectId && { projectId }),
              },
            }),
          );
    },
    onSuccess: (saved) => {
      void client.invalidateQueries({ queryKey: ["providers"] });
      void client.invalidateQueries({ queryKey: ["agents"] });
      const known = presets?.items.find((one) => one.name === saved.name);
      toast.success(`${known?.title ?? saved.name} saved`);
      onDone();
    },
  });
  // changes of names and prices need no request to the provider
  const tested =
    !provider ||
    Boolean(form.key) ||
    form.dropKey ||
    form.baseUrl.trim() !== provider.baseUrl ||
    form.models[0] !== provider.models[0];
  const at = (field: string) => fault(save.error, field);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (form.name.trim() && !save.isPending) save.mutate(tested);
  };
  return (
    <form onSubmit={submit} className="grid gap-3 sm:grid-cols-2" noValidate>
      {!provider && (
        <Field
          label="Preset"
          className="sm:col-span-2"
          hint={preset ? summary(preset, presets?.pricesTaken) : "Fills in the base URL, models and prices."}
        >
          {(wear) => (
            <Select
              {...wear}
              value={presetName}
              onChange={choosePreset}
              choices={[
                { value: OTHER, label: "Other" },
                ...(presets?.items ?? []).map((one) => ({
                  value: one.name,
                  label: one.title,
                  detail: one.baseUrl,
                })),
              ]}
            />
          )}
        </Field>
      )}
      <Field label="Name" hint="Can be used to select a model: name/model." error={at("name")}>
        {(wear) => (
          <Input
            {...wear}
            value={form.name}
            placeholder="anthropic"
            onChange={(event) => set({ name: event.target.value })}
          />
        )}
      </Field>
      <Field
        label="API type"
        hint={provider ? "Cannot be changed." : "The API that the provider offers."}
        error={at("kind")}
      >
        {(wear) => (
          <Select
            {...wear}
            disabled={Boolean(provider)}
            value={form.kind}
            onChange={(kind) => set({ kind: kind as Kind })}
            choices={KINDS}
          />
        )}
      </Field>
      <Field
        label="Base URL"
        className="sm:col-span-2"
        hint="Leave empty for the provider's default, if it has one."
        error={at("baseUrl")}
      >
        {(wear) => (
          <Input
            {...wear}
            spellCheck={false}
            placeholder={form.kind === "openai_chat" ? "http://127.0.0.1:11434" : "provider default"}
            value={form.baseUrl}
            onChange={(event) => set({ baseUrl: event.target.value })}
          />
        )}
      </Field>
      <Field
        label="Key"
        className="sm:col-span-2"
        hint={
          keyed
            ? `The stored key ends with ${provider.hint}. Leave empty to keep it.`
            : preset
              ? keyHint(preset)
              : "Optional."
        }
        error={at("key")}
      >
        {(wear) => <SecretInput {...wear} value={form.key} onChange={(event) => set({ key: event.target.value })} />}
      </Field>
      {keyed && !form.key && (
        <div className="sm:col-span-2">
          <Checkbox checked={form.dropKey} onChange={(dropKey) => set({ dropKey })} label="Remove the key" />
        </div>
      )}
      <Field
        label="Models"
        hint="One per line; the first one is the default. Leave empty to allow any model."
        error={at("models")}
      >
        {(wear) => <ListInput {...wear} mono rows={5} value={form.models} onChange={(models) => set({ models })} />}
      </Field>
      <Field
        label="Prices"
        hint="One line per model: its name, then US dollars per million input, output, cache read and cache write tokens. End a name with * to match a prefix."
        error={typeof prices === "string" ? prices : at("prices")}
      >
        {(wear) => (
          <ListInput
            {...wear}
            mono
            rows={5}
            placeholder="claude-sonnet-* 3 15 0.3 3.75"
            value={form.prices}
            onChange={(lines) => set({ prices: lines })}
          />
        )}
      </Field>
      {save.error && (
        <p role="alert" className="text-[13px] text-bad sm:col-span-2">
          {overall(save.error)}
        </p>
      )}
      <div className="flex flex-wrap justify-end gap-2 sm:col-span-2">
        <Button onClick={onDone}>Cancel</Button>
        {findingsOf(save.error) && <Button onClick={() => save.mutate(false)}>Save without testing</Button>}
        <Button
          type="submit"
          look="primary"
          busy={save.isPending}
          disabled={!form.name.trim() || typeof prices === "string"}
        >
          {tested ? "Test and save" : "Save"}
        </Button>
      </div>
    </form>
  );
}

function filled(preset: Preset) {
  return {
    name: preset.name,
    kind: preset.kind,
    baseUrl: preset.baseUrl,
    models: preset.models,
    prices: asLines(preset.prices),
  };
}

function summary(preset: Preset, taken: string | undefined): string {
  const agents = preset.agents.length ? `Works with ${preset.agents.join(", ")}.` : "";
  return `${agents} ${preset.keyRequired && taken ? `Prices as of ${taken}.` : ""}`.trim();
}

function keyHint(preset: Preset): string {
  return preset.keyRequired ? `Required. Create a key at ${preset.keyUrl ?? preset.title}.` : "Not needed.";
}
