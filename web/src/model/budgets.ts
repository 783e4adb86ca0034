/** Which limit stopped an agent, told by the sentence of the platform. Pure. */

export type SpentLimit = "task" | "project" | "user" | "price";

/** Return the limit that is used up; `price` if a limit in dollars cannot be checked because the model has no price. */
export function spentLimitOf(sentence: string): SpentLimit {
  if (sentence.includes("but the price of the model")) return "price";
  if (sentence.startsWith("The project")) return "project";
  return sentence.startsWith("The owner of the session") ? "user" : "task";
}
