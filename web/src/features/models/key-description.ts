/** Names for the keys of model providers. Pure. */

/** Return "an OpenAI key", or "an API key" unless the agent can use exactly one provider. */
export function describeKey(providers: { title: string }[]): string {
  const [only, ...others] = providers;
  if (!only || others.length > 0) return "an API key";
  return `${/^[aeiou]/i.test(only.title) ? "an" : "a"} ${only.title} key`;
}
