import { useState } from "react";
import type { Schemas } from "@/api/client";
import { fieldError } from "@/api/errors";
import { useModelPresets, useSaveModelProvider } from "@/api/queries/models";
import type { ModelProvider } from "@/api/types";
import { findingsOf } from "@/model/connection-test";
import { Button } from "@/ui/button";
import { Checkbox, Field, Input, Select } from "@/ui/field";
import { SubmitForm, useFormState } from "@/ui/form";
import { ListInput, SecretInput } from "@/ui/inputs";
import { toast } from "@/ui/toast";
import { formatPrices, parsePrices } from "./prices";

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
  provider: ModelProvider | undefined;
  projectId: string | undefined;
  onDone: () => void;
}) {
  const [form, set] = useFormState({
    name: provider?.name ?? "",
    kind: provider?.kind ?? ("anthropic" as Kind),
    baseUrl: provider?.baseUrl ?? "",
    key: "",
    dropKey: false,
    models: provider?.models ?? [],
    prices: formatPrices(provider?.prices ?? {}),
  });
  const presets = useModelPresets({ enabled: !provider }).data;
  const [presetName, setPresetName] = useState("");
  const preset = presets?.items.find((candidate) => candidate.name === presetName);
  const hasKey = provider !== undefined && provider.hint !== NO_KEY;
  const choosePreset = (name: string) => {
    setPresetName(name);
    const chosen = presets?.items.find((item) => item.name === name);
    set(chosen ? valuesOf(chosen) : { name: "", baseUrl: "", models: [], prices: [] });
  };
  const prices = parsePrices(form.prices);
  const save = useSaveModelProvider({
    onSuccess: (saved) => {
      const known = presets?.items.find((item) => item.name === saved.name);
      toast.success(`${known?.title ?? saved.name} saved`);
      onDone();
    },
  });
  const submit = (test: boolean) => {
    if (typeof prices === "string") return; // the error is shown at the field
    const shared = {
      name: form.name.trim(),
      ...(form.baseUrl.trim() && { baseUrl: form.baseUrl.trim() }),
      ...(form.key && { key: form.key }),
      models: form.models,
      prices,
      test,
    };
    save.mutate(
      provider
        ? { id: provider.id, body: { ...shared, ...(form.dropKey && !form.key && { key: null }) } }
        : {
            body: {
              ...shared,
              kind: form.kind,
              ...(preset && !form.models.length && { preset: preset.name }), // the platform then asks the provider for its models
              ...(projectId && { projectId }),
            },
          },
    );
  };
  // changes of names and prices need no request to the provider
  const needsTest =
    !provider ||
    Boolean(form.key) ||
    form.dropKey ||
    form.baseUrl.trim() !== provider.baseUrl ||
    form.models[0] !== provider.models[0];
  const errorAt = (field: string) => fieldError(save.error, field);
  return (
    <SubmitForm
      columns
      busy={save.isPending}
      error={save.error}
      ready={Boolean(form.name.trim()) && typeof prices !== "string"}
      submitLabel={needsTest ? "Test and save" : "Save"}
      onSubmit={() => submit(needsTest)}
      onCancel={onDone}
      actions={findingsOf(save.error) && <Button onClick={() => submit(false)}>Save without testing</Button>}
    >
      {!provider && (
        <Field
          label="Preset"
          className="sm:col-span-2"
          hint={preset ? summary(preset, presets?.pricesTaken) : "Fills in the base URL, models and prices."}
        >
          {(control) => (
            <Select
              {...control}
              value={presetName}
              placeholder="Choose a provider"
              onChange={choosePreset}
              choices={[
                ...(presets?.items ?? []).map((item) => ({
                  value: item.name,
                  label: item.title,
                  detail: item.baseUrl,
                })),
                { value: OTHER, label: "Other", detail: "Any server with one of the supported APIs" },
              ]}
            />
          )}
        </Field>
      )}
      <Field label="Name" hint="Can be used to select a model: name/model." error={errorAt("name")}>
        {(control) => (
          <Input
            {...control}
            value={form.name}
            placeholder="anthropic"
            onChange={(event) => set({ name: event.target.value })}
          />
        )}
      </Field>
      <Field
        label="API type"
        hint={provider ? "Cannot be changed." : "The API that the provider offers."}
        error={errorAt("kind")}
      >
        {(control) => (
          <Select
            {...control}
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
        error={errorAt("baseUrl")}
      >
        {(control) => (
          <Input
            {...control}
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
          hasKey
            ? `The stored key ends with ${provider.hint}. Leave empty to keep it.`
            : preset
              ? keyHint(preset)
              : "Optional."
        }
        error={errorAt("key")}
      >
        {(control) => (
          <SecretInput {...control} value={form.key} onChange={(event) => set({ key: event.target.value })} />
        )}
      </Field>
      {hasKey && !form.key && (
        <div className="sm:col-span-2">
          <Checkbox checked={form.dropKey} onChange={(dropKey) => set({ dropKey })} label="Remove the key" />
        </div>
      )}
      <Field
        label="Models"
        hint="One per line; the first one is the default. Leave empty to allow any model."
        error={errorAt("models")}
      >
        {(control) => (
          <ListInput {...control} mono rows={5} value={form.models} onChange={(models) => set({ models })} />
        )}
      </Field>
      <Field
        label="Prices"
        hint="One line per model: its name, then US dollars per million input, output, cache read and cache write tokens. End a name with * to match a prefix."
        error={typeof prices === "string" ? prices : errorAt("prices")}
      >
        {(control) => (
          <ListInput
            {...control}
            mono
            rows={5}
            placeholder="claude-sonnet-* 3 15 0.3 3.75"
            value={form.prices}
            onChange={(lines) => set({ prices: lines })}
          />
        )}
      </Field>
    </SubmitForm>
  );
}

function valuesOf(preset: Preset) {
  return {
    name: preset.name,
    kind: preset.kind,
    baseUrl: preset.baseUrl,
    models: preset.models,
    prices: formatPrices(preset.prices),
  };
}

function summary(preset: Preset, taken: string | undefined): string {
  const agents = preset.agents.length ? `Works with ${preset.agents.join(", ")}.` : "";
  return `${agents} ${preset.keyRequired && taken ? `Prices as of ${taken}.` : ""}`.trim();
}

function keyHint(preset: Preset): string {
  return preset.keyRequired ? `Required. Create a key at ${preset.keyUrl ?? preset.title}.` : "Not needed.";
}
