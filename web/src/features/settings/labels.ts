/** The labels of a host as lines of text. Pure. */

/** Format labels as `KEY=VALUE`, one per item, sorted. */
export function formatLabels(labels: Record<string, string>): string[] {
  return Object.entries(labels)
    .map(([key, value]) => `${key}=${value}`)
    .sort();
}

/** Return the change that gives a host the labels in these lines, with null for those to remove, or an error message. */
export function parseLabelChange(
  lines: readonly string[],
  current: Record<string, string>,
): Record<string, string | null> | string {
  const change: Record<string, string | null> = Object.fromEntries(Object.keys(current).map((key) => [key, null]));
  const given = new Set<string>();
  for (const line of lines) {
    const [, key, value] = /^([^=\s]+)\s*=\s*(\S+)$/.exec(line) ?? [];
    if (key === undefined || value === undefined) return `“${line}” is not a label. Write KEY=VALUE.`;
    if (given.has(key)) return `The label ${key} is given twice.`;
    given.add(key);
    change[key] = value;
  }
  return change;
}
