/** Prices with one line per model: `claude-sonnet-* 3 15 0.3 3.75`, in US dollars per million tokens. */
import type { Schemas } from "@/api/client";

export type Prices = Record<string, Schemas["Price"]>;

export function formatPrices(prices: Prices): string[] {
  return Object.entries(prices).map(([model, price]) =>
    [model, price.input, price.output, ...cachePrices(price.cacheRead, price.cacheWrite)].join(" "),
  );
}

/** Return the cache prices: omitted if not set, with `-` as a placeholder for a missing read price. */
function cachePrices(read: number | null | undefined, write: number | null | undefined): (number | string)[] {
  if (write === null || write === undefined) return read === null || read === undefined ? [] : [read];
  return [read ?? "-", write];
}

/** Parse the lines. Return the prices, or an error message for the first invalid line. */
export function parsePrices(lines: string[]): Prices | string {
  const prices: Prices = {};
  for (const line of lines) {
    const [model = "", ...words] = line.split(/\s+/);
    const numbers = words.map((word) => (word === "-" ? null : Number(word)));
    const [input, output, cacheRead = null, cacheWrite = null] = numbers;
    const invalid = numbers.some((number) => number !== null && !(number >= 0));
    if (invalid || words.length > 4 || typeof input !== "number" || typeof output !== "number") {
      return `“${line}” is not a valid price. Write the model, then US dollars per million input and output tokens.`;
    }
    prices[model] = { input, output, cacheRead, cacheWrite };
  }
  return prices;
}
