/** Accessible charts: every bar has a label, and the same numbers are available as a table. */
import clsx from "clsx";
import { type KeyboardEvent, useRef, useState } from "react";
import { ESTIMATED } from "@/lib/format";
import { roundUp, type Series } from "./sums";

const FILLS = ["fill-accent", "fill-info", "fill-ok", "fill-faint", "fill-bad", "fill-warn"];
const DOTS = ["bg-accent", "bg-info", "bg-ok", "bg-faint", "bg-bad", "bg-warn"];
export const MAX_SERIES = FILLS.length;

const HEIGHT = 100;

interface ChartProps {
  title: string;
  days: string[];
  series: Series[];
  format: (value: number, estimated?: boolean) => string;
}

function dayName(day: string): string {
  return new Date(`${day}T12:00:00Z`).toLocaleDateString(undefined, {
    day: "numeric",
    month: "short",
    timeZone: "UTC",
  });
}

/** A stacked bar for each day. The bars are a single tab stop; arrow keys, Home and End move between days. */
export function DayBars({ title, days, series, format }: ChartProps) {
  const [selected, setSelected] = useState<number | null>(null);
  const bars = useRef<(HTMLButtonElement | null)[]>([]);
  const totals = days.map((_, day) => series.reduce((sum, line) => sum + (line.values[day] ?? 0), 0));
  const formatTotal = (day: number) =>
    format(
      totals[day] ?? 0,
      series.some((line) => line.estimatedDays.has(day)),
    );
  const top = roundUp(Math.max(...totals));
  /** The day that Tab reaches and whose values are shown. */
  const current = selected ?? days.length - 1;
  const moveFocus = (event: KeyboardEvent) => {
    const next = { ArrowLeft: current - 1, ArrowRight: current + 1, Home: 0, End: days.length - 1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    bars.current[Math.max(0, Math.min(days.length - 1, next))]?.focus();
  };
  return (
    <figure className="p-4">
      <figcaption className="sr-only">{title}</figcaption>
      <div className="flex gap-2">
        <div
          className="flex w-12 shrink-0 flex-col justify-between text-right text-2xs text-faint tabular-nums"
          aria-hidden
        >
          <span>{format(top)}</span>
          <span>{format(top / 2)}</span>
          <span>{format(0)}</span>
        </div>
        <div className="relative h-40 min-w-0 flex-1">
          <svg
            viewBox={`0 0 ${days.length * 10} ${HEIGHT}`}
            preserveAspectRatio="none"
            className="absolute size-full"
            aria-hidden
          >
            {[0, 0.5, 1].map((part) => (
              <line
                key={part}
                x1={0}
                x2={days.length * 10}
                y1={HEIGHT * part}
                y2={HEIGHT * part}
                className="stroke-line"
                vectorEffect="non-scaling-stroke"
              />
            ))}
            {days.map((day, dayIndex) => (
              <StackedBar key={day} dayIndex={dayIndex} series={series} top={top} />
            ))}
          </svg>
          <fieldset aria-label={title} className="absolute inset-0 flex">
            {days.map((day, dayIndex) => (
              <button
                key={day}
                type="button"
                ref={(element) => {
                  bars.current[dayIndex] = element;
                }}
                aria-label={`${dayName(day)}: ${formatTotal(dayIndex)}`}
                title={`${dayName(day)}: ${formatTotal(dayIndex)}`}
                aria-pressed={dayIndex === current}
                tabIndex={dayIndex === current ? 0 : -1}
                onKeyDown={moveFocus}
                onClick={() => setSelected(dayIndex)}
                onFocus={() => setSelected(dayIndex)}
                onPointerEnter={() => setSelected(dayIndex)}
                className={clsx("min-w-0 flex-1", dayIndex === selected && "bg-text/8")}
              />
            ))}
          </fieldset>
        </div>
      </div>
      <div className="mt-1 flex justify-between pl-14 text-2xs text-faint" aria-hidden>
        <span>{dayName(days[0] ?? "")}</span>
        <span>{dayName(days.at(-1) ?? "")}</span>
      </div>
      <Readout
        day={days[current] ?? ""}
        dayIndex={current}
        series={series}
        format={format}
        total={formatTotal(current)}
      />
      <DayTable title={title} days={days} series={series} format={format} />
    </figure>
  );
}

function StackedBar({ dayIndex, series, top }: { dayIndex: number; series: Series[]; top: number }) {
  let below = 0;
  return series.map((line, index) => {
    const height = ((line.values[dayIndex] ?? 0) / top) * HEIGHT;
    below += height;
    return height > 0 ? (
      <rect
        key={line.key}
        x={dayIndex * 10 + 1.5}
        y={HEIGHT - below}
        width={7}
        height={height}
        className={FILLS[index % MAX_SERIES]}
      />
    ) : null;
  });
}

/** The values of the selected day; also the legend. */
function Readout({
  day,
  dayIndex,
  series,
  format,
  total,
}: {
  day: string;
  dayIndex: number;
  series: Series[];
  format: ChartProps["format"];
  total: string;
}) {
  return (
    <div className="mt-2 flex flex-wrap items-center gap-x-4 gap-y-1 text-xs" aria-live="polite">
      <span className="font-medium tabular-nums">
        {dayName(day)}: {total}
      </span>
      {series.map((line, index) => (
        <span key={line.key} className="flex min-w-0 items-center gap-1.5 text-soft">
          <span className={clsx("size-2 shrink-0 rounded-sm", DOTS[index % MAX_SERIES])} aria-hidden />
          <span className="truncate">{line.key}</span>
          <span className="tabular-nums">{format(line.values[dayIndex] ?? 0, line.estimatedDays.has(dayIndex))}</span>
        </span>
      ))}
    </div>
  );
}

function DayTable({ title, days, series, format }: ChartProps) {
  return (
    <details className="mt-2 text-xs">
      <summary className="cursor-pointer text-soft hover:text-text">Show as table</summary>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: it scrolls, so it must be reachable by keyboard */}
      <div className="mt-1 max-h-64 overflow-auto rounded-md border" tabIndex={0}>
        <table className="w-full border-collapse tabular-nums">
          <caption className="sr-only">{title}</caption>
          <thead className="sticky top-0 bg-surface">
            <tr>
              <th scope="col" className="px-2 py-1 text-left font-medium">
                Day (UTC)
              </th>
              {series.map((line) => (
                <th key={line.key} scope="col" className="px-2 py-1 text-right font-medium">
                  {line.key}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {days.map((day, dayIndex) => (
              <tr key={day} className="border-t">
                <th scope="row" className="px-2 py-0.5 text-left font-normal">
                  {day}
                </th>
                {series.map((line) => (
                  <td key={line.key} className="px-2 py-0.5 text-right">
                    {format(line.values[dayIndex] ?? 0, line.estimatedDays.has(dayIndex))}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </details>
  );
}

/** A table of totals with decorative bars. The caller sorts the rows. */
export function TotalsTable({
  title,
  rows,
  format,
}: {
  title: string;
  rows: { key: string; name: string; total: number; estimated: boolean }[];
  format: (value: number, estimated?: boolean) => string;
}) {
  const largest = Math.max(...rows.map((row) => row.total), 0);
  return (
    <table className="w-full table-fixed text-[13px]">
      <caption className="sr-only">{title}</caption>
      <colgroup>
        <col className="w-2/5" />
        <col />
        <col className="w-24" />
      </colgroup>
      <tbody className="divide-y">
        {rows.map((row, index) => (
          <tr key={row.key}>
            <th scope="row" className="truncate px-4 py-1.5 text-left font-normal" title={row.name}>
              {row.name}
            </th>
            <td className="py-1.5" aria-hidden>
              <svg viewBox="0 0 100 8" preserveAspectRatio="none" className="h-2 w-full">
                <title>{`${row.name}: ${format(row.total, row.estimated)}`}</title>
                <rect width={100} height={8} rx={1} className="fill-sunken" />
                <rect
                  width={largest ? (100 * row.total) / largest : 0}
                  height={8}
                  rx={1}
                  className={FILLS[index % MAX_SERIES]}
                />
              </svg>
            </td>
            <td className="px-4 py-1.5 text-right tabular-nums" title={row.estimated ? ESTIMATED : undefined}>
              {format(row.total, row.estimated)}
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
