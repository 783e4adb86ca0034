/** Permission requests that the project's policy allowed or denied. Pure. */
import type { Ask } from "@/api/types";
import { textOrEmpty } from "./message-parts";

/** Whether the project's policy allowed the request without asking anyone. */
export function isAllowedByPolicy(ask: Ask): boolean {
  const answer = ask.answer ?? {};
  return ask.decidedBy === "policy" && (textOrEmpty(answer.kind) || textOrEmpty(answer.decision)).startsWith("allow");
}

/** Whether one of the project's deny patterns denied the request; the owner can allow it. */
export const isDeniedByPolicy = (ask: Ask): boolean =>
  ask.decidedBy === "policy" && typeof ask.detail.pattern === "string";

/** Whether a permission request was denied, by a person, the policy or because nobody answered, and was not allowed afterwards. */
export function isDenied(ask: Ask): boolean {
  if (ask.kind !== "permission" || ask.decidedBy === "overruled") return false;
  if (ask.status === "expired") return true;
  const answer = ask.answer ?? {};
  return ask.status === "answered" && (textOrEmpty(answer.kind) || textOrEmpty(answer.decision)).startsWith("reject");
}

/** Return the denied requests of the newest turn that has any, one per pattern. */
export function lastDenied(asks: readonly Ask[]): Ask[] {
  const refused = asks.filter(isDeniedByPolicy).sort((a, b) => (a.id < b.id ? 1 : -1));
  const found = new Map<unknown, Ask>();
  for (const ask of refused) {
    if (ask.turnId === refused[0]?.turnId) found.set(ask.detail.pattern, ask);
  }
  return [...found.values()];
}
