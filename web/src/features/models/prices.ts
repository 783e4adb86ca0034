/** Prices as one line each: `claude-sonnet-* 3 15 0.3 3.75`, in US dollars for a million tokens. */
import type { Schemas } from "@/api/client";

export type Prices = Record<string, Schemas["Price"]>;

export function asLines(prices: Prices): string[] {
  return Object.entries(prices).map(([model, price]) =>
    [model, price.input, price.output, ...tail(price.cacheRead, price.cacheWrite)].join(" "),
  );
}

/** What a cache costs is left out when nothing is said of it; a `-` keeps its place. */
function tail(read: number | null | undefined, write: number | null | undefined): (number | string)[] {
  if (write === null || write === undefined) return read === null || read === undefined ? [] : [read];
  return [read ?? "-", write];
}

/** The prices, or a sentence about the first line that is none. */
export function parsed(lines: string[]): Prices | string {
  const prices: Prices = {};
  for (const line of lines) {
    const [model = "", ...words] = line.split(/\s+/);
    const numbers = words.map((word) => (word === "-" ? null : Number(word)));
    const [input, output, cacheRead = null, cacheWrite = null] = numbers;
    const wrong = numbers.some((number) => number !== null && !(number >= 0));
    if (wrong || words.length > 4 || typeof input !== "number" || typeof output !== "number") {
      return `“${line}” is no price. Write the model, then dollars for a million tokens in and out.`;
    }
    prices[model] = { input, output, cacheRead, cacheWrite };
  }
  return prices;
}
