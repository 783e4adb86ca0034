/** Permissions that the project's policy refused. Pure. */
import type { Ask } from "@/api/types";

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
