/** Format numbers and times for people. */
export function formatBytes(bytes: number): string {
  if (bytes < 1024) return `${bytes} B`;
  const units = ["KiB", "MiB", "GiB", "TiB"];
  let value = bytes;
  let unit = -1;
  do {
    value /= 1024;
    unit += 1;
  } while (value >= 1024 && unit < units.length - 1);
  return `${value < 10 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

/** Format a duration like the CLI: with tenths below ten seconds. */
export function formatPreciseDuration(seconds: number): string {
  const tenths = Math.round(Math.max(0, seconds) * 10) / 10;
  return tenths < 10 && !Number.isInteger(seconds) ? `${tenths.toFixed(1)}s` : formatDuration(seconds);
}

export function formatDuration(seconds: number): string {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole}s`;
  if (whole < 3600) return `${Math.floor(whole / 60)}m ${whole % 60}s`;
  if (whole < 86_400) return `${Math.floor(whole / 3600)}h ${Math.floor((whole % 3600) / 60)}m`;
  return `${Math.floor(whole / 86_400)}d ${Math.floor((whole % 86_400) / 3600)}h`;
}

/** Format a configured duration exactly, without empty units. */
export function formatPeriod(seconds: number): string {
  const parts = [
    [Math.floor(seconds / 3600), "h"],
    [Math.floor((seconds % 3600) / 60), "min"],
    [seconds % 60, "s"],
  ] as const;
  return (
    parts
      .filter(([value]) => value > 0)
      .map(([value, unit]) => `${value} ${unit}`)
      .join(" ") || "0 s"
  );
}

/** Format a duration in one unit. */
export function formatRoughDuration(seconds: number): string {
  if (seconds < 60) return `${Math.max(0, Math.round(seconds))} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172_800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86_400)} d`;
}

export function formatAgo(instant: string, now = Date.now()): string {
  const seconds = (now - Date.parse(instant)) / 1000;
  if (seconds < 45) return "just now";
  if (seconds < 3600) return `${Math.max(1, Math.round(seconds / 60))} min ago`;
  if (seconds < 86_400) return `${Math.round(seconds / 3600)} h ago`;
  if (seconds < 86_400 * 14) return `${Math.round(seconds / 86_400)} d ago`;
  return new Date(instant).toLocaleDateString(undefined, { year: "numeric", month: "short", day: "numeric" });
}

/** Format a cost. `estimated` marks one that contains an estimate; explain it with `ESTIMATED`. */
export function formatCost(usd: number | null | undefined, estimated = false): string {
  if (usd === null || usd === undefined) return "–";
  if (usd === 0) return "$0";
  return `${estimated ? "≈ " : ""}${usd < 0.01 ? "<$0.01" : `$${usd.toFixed(2)}`}`;
}

export const ESTIMATED =
  "Contains an estimate: a request was stopped or is in progress, or the provider did not report its usage.";

// created once: creating one is too slow for each row of a long list
const short = new Intl.NumberFormat(undefined, { notation: "compact" });
const plain = new Intl.NumberFormat(undefined, { notation: "standard" });

export function count(value: number): string {
  return (value >= 10_000 ? short : plain).format(value);
}

export function pluralize(value: number, one: string, many = `${one}s`): string {
  return `${count(value)} ${value === 1 ? one : many}`;
}
