/** What a session's agent can be set to, as it says itself, or else as is known of it. Pure. */
import type { Schemas } from "@/api/client";
import type { Agent } from "@/api/types";
import { list, record, words } from "./parts";

export interface Option {
  value: string;
  label: string;
}

/** `category`: model or mode. */
function configured(options: Record<string, unknown>, category: string): Option[] {
  for (const option of list(options.configOptions)) {
    const one = record(option);
    if (one.category !== category) continue;
    return list(one.options)
      .flatMap((given) => (Array.isArray(record(given).options) ? list(record(given).options) : [given]))
      .flatMap((given) => {
        const { value, name } = record(given);
        return typeof value === "string" && value ? [{ value, label: words(name) || value }] : [];
      });
  }
  return [];
}

export function modelsOf(state: Schemas["AgentStateView"] | undefined, agent: Agent | undefined): Option[] {
  const said = configured(state?.options ?? {}, "model");
  return said.length ? said : (agent?.models ?? []).map((value) => ({ value, label: value }));
}

export function modesOf(state: Schemas["AgentStateView"] | undefined, agent: Agent | undefined): Option[] {
  const said = list(state?.options.modes).flatMap((one) => {
    const { id, name } = record(one);
    return typeof id === "string" && id ? [{ value: id, label: words(name) || id }] : [];
  });
  if (said.length) return said;
  const set = configured(state?.options ?? {}, "mode");
  return set.length ? set : (agent?.modes ?? []).map((value) => ({ value, label: value }));
}

export interface SlashCommand {
  name: string;
  description: string;
}

/** Those that begin like what is being written, when that is nothing but the beginning of a command. */
export function suggested(state: Schemas["AgentStateView"] | undefined, draft: string): SlashCommand[] {
  const begun = /^\/([\w:.-]*)$/.exec(draft)?.[1];
  if (begun === undefined) return [];
  return list(state?.options.commands)
    .map((one) => ({ name: words(record(one).name), description: words(record(one).description) }))
    .filter((one) => one.name !== "" && one.name.startsWith(begun))
    .slice(0, 8);
}
