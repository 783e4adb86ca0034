/** What the palette offers for some words, and in which order. Pure. */

export interface Entry {
  id: string;
  group: string;
  label: string;
  note?: string;
  /** What else people call it. */
  words?: string;
  /** Only for words that somebody has typed: there are many of its kind. */
  quiet?: boolean;
  /** The platform has found it for these very words, which may be in its description. */
  found?: boolean;
  run: () => unknown;
}

/** Entries in whose label or other names every word begins one, and those that the platform has found; the former first. Groups stay in the order given,
 * so that what arrives late moves nothing that is above it. */
export function matchEntries<T extends Entry>(entries: T[], words: string): T[] {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  const groups = [...new Set(entries.map((entry) => entry.group))];
  const rank = (entry: T) => {
    if (entry.quiet && wanted.length === 0) return 2;
    const names = `${entry.label} ${entry.words ?? ""}`.toLowerCase();
    return wanted.every((word) => beginsWord(names, word)) ? 0 : entry.found ? 1 : 2;
  };
  return groups.flatMap((group) => {
    const own = entries.filter((entry) => entry.group === group).map((entry) => ({ entry, rank: rank(entry) }));
    return [0, 1].flatMap((wanted) => own.filter((one) => one.rank === wanted).map((one) => one.entry));
  });
}

/** "di" is in "Audit log", but nobody means it. */
function beginsWord(label: string, word: string): boolean {
  for (let at = label.indexOf(word); at >= 0; at = label.indexOf(word, at + 1)) {
    if (!/[\p{L}\p{N}]/u.test(label[at - 1] ?? "") || !/[\p{L}\p{N}]/u.test(word[0] ?? "")) return true;
  }
  return false;
}

/** The entry that Enter runs: the chosen one while it is shown, else the first. */
export function markedEntry<T extends Entry>(shown: T[], chosen: string | null): T | undefined {
  return shown.find((entry) => entry.id === chosen) ?? shown[0];
}

/** The entry so many places after (or before) the marked one, within the list. */
export function stepFrom<T extends Entry>(shown: T[], marked: T | undefined, by: number): T | undefined {
  const place = marked ? shown.indexOf(marked) + by : 0;
  return shown[Math.max(0, Math.min(shown.length - 1, place))];
}
