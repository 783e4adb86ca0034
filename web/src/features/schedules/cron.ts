/** Describe cron expressions in words. Expressions that are not understood are left to the platform, which validates all of them. */
const DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS = [
  "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December",
]; // biome-ignore format: a list of names
const SHORT = (names: string[]) => names.map((name) => name.slice(0, 3).toUpperCase());

/** Parse `MON` or `1` to a number; NaN for anything else. */
function parseNumber(text: string, short: string[], first: number): number {
  const named = short.indexOf(text.toUpperCase());
  return named >= 0 ? named + first : /^\d+$/.test(text) ? Number(text) : Number.NaN;
}

function join(words: string[]): string {
  return words.length < 2 ? (words[0] ?? "") : `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`;
}

/** Describe a list of numbers, names and ranges; null if it contains anything else. */
function describeList(field: string, names: string[], first: number): string | null {
  const name = (text: string) => names[(parseNumber(text, SHORT(names), first) - first) % names.length];
  const words = field.split(",").map((item) => {
    const [from, to, ...more] = item.split("-");
    const begin = name(from ?? "");
    const end = to === undefined ? undefined : name(to);
    if (!begin || more.length || (to !== undefined && !end)) return null;
    return end ? `${begin} to ${end}` : begin;
  });
  return words.every((word) => word !== null) ? join(words) : null;
}

function describeTimes(minute: string, hour: string): string | null {
  const every = /^\*\/(\d+)$/;
  if (minute === "*" && hour === "*") return "every minute";
  if (hour === "*" && every.test(minute)) return `every ${every.exec(minute)?.[1]} minutes`;
  if (!/^\d+(,\d+)*$/.test(minute)) return null;
  const minutes = minute.split(",").map(Number);
  if (minutes.some((candidate) => candidate > 59)) return null;
  if (hour === "*") return `every hour at ${join(minutes.map((item) => `:${String(item).padStart(2, "0")}`))}`;
  if (every.test(hour) && minutes.length === 1) {
    return `every ${every.exec(hour)?.[1]} hours at :${String(minutes[0]).padStart(2, "0")}`;
  }
  if (!/^\d+(,\d+)*$/.test(hour)) return null;
  const hours = hour.split(",").map(Number);
  if (hours.some((candidate) => candidate > 23)) return null;
  return `at ${join(hours.flatMap((h) => minutes.map((m) => `${String(h).padStart(2, "0")}:${String(m).padStart(2, "0")}`)))}`;
}

/** Describe an expression, such as “At 06:00, Monday to Friday”. Null if it is too complex, which does not mean that it is invalid. */
export function describeCron(cron: string): string | null {
  const [minute, hour, day, month, weekday, ...more] = cron.trim().split(/\s+/);
  if (!minute || !hour || !day || !month || !weekday || more.length) return null;
  const time = describeTimes(minute, hour);
  const weekdays = weekday === "*" ? "" : describeList(weekday, DAYS, 0);
  const months = month === "*" ? "" : describeList(month, MONTHS, 1);
  const days = day === "*" ? "" : /^\d+(,\d+)*$/.test(day) ? join(day.split(",")) : day === "L" ? "the last day" : null;
  if (time === null || weekdays === null || months === null || days === null) return null;
  const when = [
    days && (day === "L" ? "on the last day of the month" : `on day ${days} of the month`),
    weekdays && (days ? `or on ${weekdays}` : weekdays),
    months && `in ${months}`,
  ].filter(Boolean);
  const text = [time, ...(when.length ? when : time.startsWith("at ") ? ["every day"] : [])].join(", ");
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** Return an error for an obviously invalid expression; the platform does the full validation. */
export function cronError(cron: string): string | null {
  const fields = cron.trim().split(/\s+/).filter(Boolean);
  return fields.length === 5
    ? null
    : "Five fields are required: minute, hour, day of the month, month, day of the week.";
}
