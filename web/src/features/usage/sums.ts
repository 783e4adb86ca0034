/** Aggregate usage for charts. Days are in UTC, as on the platform. */
import type { Schemas } from "@/api/client";

export type DayUsage = Schemas["UsageOfDay"];
export type Metric = "cost" | "tokens";

export interface Sum {
  calls: number;
  input: number;
  output: number;
  cached: number;
  cost: number;
  unpriced: number;
  estimated: number;
}

export interface Series {
  key: string;
  total: number;
  /** One value per day. */
  values: number[];
  /** Whether the total contains a cost that is an estimate. */
  estimated: boolean;
  /** The indexes of the days whose value contains an estimate. */
  estimatedDays: ReadonlySet<number>;
}

const DAY = 86_400_000;

/** Return the last `count` days up to today, oldest first, as `2026-01-31`. */
export function daysUpTo(now: number, count: number): string[] {
  return Array.from({ length: count }, (_, index) =>
    new Date(now - (count - 1 - index) * DAY).toISOString().slice(0, 10),
  );
}

export function sumUsage(items: DayUsage[]): Sum {
  const sum: Sum = { calls: 0, input: 0, output: 0, cached: 0, cost: 0, unpriced: 0, estimated: 0 };
  for (const usage of items) {
    sum.calls += usage.calls;
    sum.input += usage.inputTokens;
    sum.output += usage.outputTokens;
    sum.cached += usage.cacheReadTokens;
    sum.cost += usage.costUsd ?? 0;
    sum.unpriced += usage.unpriced;
    sum.estimated += usage.estimated;
  }
  return sum;
}

export const amount = (dayUsage: DayUsage, metric: Metric): number =>
  metric === "cost" ? (dayUsage.costUsd ?? 0) : dayUsage.inputTokens + dayUsage.outputTokens;

/** Group by `keyOf`, largest first. Returns at limit `limit` series; the last one then sums the rest as “others”. */
export function groupUsage(
  items: DayUsage[],
  days: string[],
  metric: Metric,
  keyOf: (dayUsage: DayUsage) => string,
  limit: number,
): Series[] {
  const indexes = new Map(days.map((day, index) => [day, index]));
  const found = new Map<string, Series & { estimatedDays: Set<number> }>();
  const add = (key: string, index: number, value: number, estimated: boolean) => {
    const series = found.get(key) ?? {
      key,
      total: 0,
      values: days.map(() => 0),
      estimated: false,
      estimatedDays: new Set(),
    };
    series.total += value;
    series.estimated ||= estimated;
    if (estimated) series.estimatedDays.add(index);
    series.values[index] = (series.values[index] ?? 0) + value;
    found.set(key, series);
  };
  for (const item of items) {
    const index = indexes.get(item.day);
    if (index !== undefined) add(keyOf(item), index, amount(item, metric), metric === "cost" && item.estimated > 0);
  }
  const sorted = [...found.values()].sort((a, b) => b.total - a.total || a.key.localeCompare(b.key));
  if (sorted.length <= limit) return sorted;
  const rest = sorted.slice(limit - 1);
  return [
    ...sorted.slice(0, limit - 1),
    {
      key: "others",
      total: rest.reduce((sum, series) => sum + series.total, 0),
      estimated: rest.some((series) => series.estimated),
      estimatedDays: new Set(rest.flatMap((series) => [...series.estimatedDays])),
      values: days.map((_, index) => rest.reduce((sum, series) => sum + (series.values[index] ?? 0), 0)),
    },
  ];
}

/** Return a round number at or above the highest value: 1, 2 or 5 times a power of ten. */
export function roundUp(highest: number): number {
  if (!(highest > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(highest));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= highest * 0.999_999) ?? highest;
}
