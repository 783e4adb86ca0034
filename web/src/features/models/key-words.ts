/** How keys of model providers are called. Pure. */

/** "an OpenAI key"; of several providers that an agent can use, none is named. */
export function keyOf(providers: { title: string }[]): string {
  const [only, ...others] = providers;
  if (!only || others.length > 0) return "an API key";
  return `${/^[aeiou]/i.test(only.title) ? "an" : "a"} ${only.title} key`;
}
