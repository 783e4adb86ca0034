import { createElement } from "react";
import { renderToStaticMarkup } from "react-dom/server";
import { expect, it } from "vitest";
import { formatCost } from "@/lib/format";
import { DayBars } from "./charts";
import { type DayUsage, daysUpTo, groupUsage, roundUp, sumUsage } from "./sums";

function used(day: string, model: string | null, costUsd: number | null, inputTokens = 10): DayUsage {
  return {
    day, model, costUsd, inputTokens, calls: 1, outputTokens: 1, cacheReadTokens: 0, cacheWriteTokens: 0, unpriced: costUsd === null ? 1 : 0, estimated: 0, projectId: null,
  }; // biome-ignore format: a row
}

const now = Date.UTC(2026, 2, 1, 0, 30);
const model = (dayUsage: DayUsage) => dayUsage.model ?? "unknown";

it("lists the days before today, across months", () => {
  expect(daysUpTo(now, 3)).toEqual(["2026-02-27", "2026-02-28", "2026-03-01"]);
});

it("assigns values to days and ignores older ones", () => {
  const days = daysUpTo(now, 2);
  const items = [
    used("2026-03-01", "a", 1),
    used("2026-02-28", "a", 2),
    used("2026-02-27", "a", 9),
    used("2026-03-01", "b", null),
  ];
  expect(groupUsage(items, days, "cost", model, 5)).toEqual([
    { key: "a", total: 3, values: [2, 1], estimated: false, estimatedDays: new Set() },
    { key: "b", total: 0, values: [0, 0], estimated: false, estimatedDays: new Set() },
  ]);
  expect(groupUsage(items, days, "tokens", model, 5)[0]?.values).toEqual([11, 11]);
});

it("keeps the largest series and sums the rest as others", () => {
  const items = ["a", "b", "c", "d"].map((name, index) => used("2026-03-01", name, index + 1));
  const made = groupUsage(items, daysUpTo(now, 1), "cost", model, 3);
  expect(made.map((series) => [series.key, series.total])).toEqual([["d", 4], ["c", 3], ["others", 3]]); // biome-ignore format: pairs
});

it("marks sums that contain an estimate", () => {
  const stopped = { ...used("2026-03-01", "a", 1), estimated: 1 };
  const items = [used("2026-03-01", "a", 1), stopped, used("2026-03-01", "b", 1), used("2026-03-01", "c", 1)];
  const marked = (metric: "cost" | "tokens") =>
    groupUsage(items, daysUpTo(now, 1), metric, model, 5).map((series) => series.estimated);
  expect(marked("cost")).toEqual([true, false, false]);
  expect(marked("tokens")).toEqual([false, false, false]);
  expect(sumUsage(items).estimated).toBe(1);
});

it("marks the days of a chart that contain an estimate", () => {
  const days = daysUpTo(now, 2);
  const items = [
    used("2026-02-28", "a", 1),
    { ...used("2026-03-01", "a", 2), estimated: 1 },
    used("2026-03-01", "b", 3),
  ];
  const series = groupUsage(items, days, "cost", model, 5);
  const html = renderToStaticMarkup(createElement(DayBars, { title: "Cost", days, series, format: formatCost }));
  expect([...html.matchAll(/aria-label="[^"]*: ([^"]*)"/g)].map((regExpExecArray) => regExpExecArray[1])).toEqual([
    "$1.00",
    "≈ $5.00",
  ]);
  expect(html).toMatch(/aria-live="polite".*: ≈ \$5\.00.*>b<.*>\$3\.00<.*>a<.*>≈ \$2\.00</);
  expect(groupUsage(items, days, "cost", model, 1)[0]?.estimatedDays).toEqual(new Set([1]));
});

it("sums known costs and counts unpriced requests", () => {
  expect(sumUsage([used("2026-03-01", "a", 1.5), used("2026-03-01", "b", null)])).toMatchObject({
    calls: 2,
    cost: 1.5,
    unpriced: 1,
    input: 20,
  });
});

it("rounds up to a round number", () => {
  expect([0, 0.03, 1, 1.2, 4.5, 7, 99, 100, 101].map(roundUp)).toEqual([1, 0.05, 1, 2, 5, 10, 100, 100, 200]);
});
