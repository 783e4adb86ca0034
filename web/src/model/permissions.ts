/** What a project lets agents do without asking. */
import type { Agent, Project } from "@/api/types";

export const PERMISSION_MODES = [
  { value: "allow_all", label: "Allow everything", detail: "Everything inside the sandbox." },
  {
    value: "allow_reads",
    label: "Allow reading",
    detail: "Reading, searching and thinking. Everything else needs permission.",
  },
  { value: "ask", label: "Ask for everything", detail: "A person answers every permission request." },
] as const;

/**
 * Return the name of the agent's default mode if that mode asks: the project's policy answers, so the policy says what happens. An agent
 * may call it "Always ask" although the project allows everything. Undefined if the mode has a meaning of its own.
 */
export function defaultModeLabel(agent: Agent | undefined, project: Project | undefined): string | undefined {
  const [usual] = agent?.modes ?? [];
  if (!agent?.unaskedModes.length || !usual || agent.unaskedModes.includes(usual)) return undefined;
  const policy = project?.settings.agent?.permissions?.mode ?? "allow_all";
  return PERMISSION_MODES.find((mode) => mode.value === policy)?.label;
}

/** Return whether the project allows the agent to work in this mode. In the others it would act without the permission it needs. */
export function isModeAllowed(agent: Agent | undefined, project: Project | undefined, mode: string): boolean {
  const permissions = project?.settings.agent?.permissions;
  const isStrict = Boolean(permissions?.deny?.length) || (permissions?.mode ?? "allow_all") !== "allow_all";
  return !isStrict || agent?.demo === true || !agent?.unaskedModes.includes(mode);
}
