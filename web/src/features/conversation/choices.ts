/** The models, modes and commands of a session's agent: as the agent reports them, else from its definition. Pure. */
import type { Schemas } from "@/api/client";
import type { Agent, Project } from "@/api/types";
import { defaultModeLabel, isModeAllowed } from "@/model/permissions";
import { listOrEmpty, recordOrEmpty, textOrEmpty } from "./message-parts";

export interface Option {
  value: string;
  label: string;
}

/** Remove the name of the provider that OpenCode adds: "Sandyard/sonnet" reads as a path. */
const removePrefix = (label: string): string => label.replace(/^sandyard\//i, "");

/** `category` is `model` or `mode`. */
function configured(options: Record<string, unknown>, category: string): Option[] {
  for (const option of listOrEmpty(options.configOptions)) {
    const fields = recordOrEmpty(option);
    if (fields.category !== category) continue;
    return listOrEmpty(fields.options)
      .flatMap((given) =>
        Array.isArray(recordOrEmpty(given).options) ? listOrEmpty(recordOrEmpty(given).options) : [given],
      )
      .flatMap((given) => {
        const { value, name } = recordOrEmpty(given);
        return typeof value === "string" && value ? [{ value, label: removePrefix(textOrEmpty(name) || value) }] : [];
      });
  }
  return [];
}

export function modelsOf(state: Schemas["AgentStateView"] | undefined, agent: Agent | undefined): Option[] {
  const said = configured(state?.options ?? {}, "model");
  return said.length ? said : (agent?.models ?? []).map((value) => ({ value, label: value }));
}

/**
 * Return the options with the current value among them. The current model may lack the name of the provider that the agent adds:
 * `sonnet` and `sandyard/sonnet` are one option.
 */
export function withCurrent(options: Option[], now: string): { options: Option[]; value: string } {
  const same =
    options.find((option) => option.value === now) ?? options.find((option) => option.value.endsWith(`/${now}`));
  return same ? { options, value: same.value } : { options: [{ value: now, label: now }, ...options], value: now };
}

/** Return the modes that the project allows. The agent's default mode is named after the project's policy if the policy decides. */
export function modesOf(
  state: Schemas["AgentStateView"] | undefined,
  agent: Agent | undefined,
  project: Project | undefined,
): Option[] {
  const label = defaultModeLabel(agent, project);
  return listModes(state, agent)
    .filter((mode) => isModeAllowed(agent, project, mode.value))
    .map((mode) => (label && mode.value === agent?.modes[0] ? { ...mode, label } : mode));
}

function listModes(state: Schemas["AgentStateView"] | undefined, agent: Agent | undefined): Option[] {
  const said = listOrEmpty(state?.options.modes).flatMap((mode) => {
    const { id, name } = recordOrEmpty(mode);
    return typeof id === "string" && id ? [{ value: id, label: textOrEmpty(name) || id }] : [];
  });
  if (said.length) return said;
  const set = configured(state?.options ?? {}, "mode");
  return set.length ? set : (agent?.modes ?? []).map((value) => ({ value, label: value }));
}

export interface SlashCommand {
  name: string;
  description: string;
}

/** Return up to eight commands that match the draft, if the draft is only the beginning of a slash command. */
export function suggestCommands(state: Schemas["AgentStateView"] | undefined, draft: string): SlashCommand[] {
  const begun = /^\/([\w:.-]*)$/.exec(draft)?.[1];
  if (begun === undefined) return [];
  return listOrEmpty(state?.options.commands)
    .map((command) => ({
      name: textOrEmpty(recordOrEmpty(command).name),
      description: textOrEmpty(recordOrEmpty(command).description),
    }))
    .filter((command) => command.name !== "" && command.name.startsWith(begun))
    .slice(0, 8);
}
