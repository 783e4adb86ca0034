/** Permissions that the project's policy gave or refused. Pure. */
import type { Ask } from "@/api/types";
import { words } from "./parts";

/** Nobody was asked: the project's policy allowed it. */
export function isAllowedByPolicy(ask: Ask): boolean {
  const answer = ask.answer ?? {};
  return ask.decidedBy === "policy" && (words(answer.kind) || words(answer.decision)).startsWith("allow");
}

/** Whether a pattern of the project's denied it, which its owner can allow. */
export const isRefusedByPolicy = (ask: Ask): boolean =>
  ask.decidedBy === "policy" && typeof ask.detail.pattern === "string";

/** Those of the newest turn in which there are any, one for each pattern. */
export function refusedLast(asks: readonly Ask[]): Ask[] {
  const refused = asks.filter(isRefusedByPolicy).sort((a, b) => (a.id < b.id ? 1 : -1));
  const found = new Map<unknown, Ask>();
  for (const ask of refused) {
    if (ask.turnId === refused[0]?.turnId) found.set(ask.detail.pattern, ask);
  }
  return [...found.values()];
}
