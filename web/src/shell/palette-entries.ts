/** Match and order the entries of the command palette. Pure. */

export interface Entry {
  id: string;
  group: string;
  label: string;
  note?: string;
  /** Synonyms that also match. */
  words?: string;
  /** Hidden until something is typed, because there are many of this kind. */
  quiet?: boolean;
  /** Found by the platform's search, possibly in its description. */
  found?: boolean;
  run: () => unknown;
}

/**
 * Return the entries in whose label or synonyms every search term is the beginning of a word, followed by those that the platform found.
 * Groups keep the given order, so that late results do not move what is above them.
 */
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
    return [0, 1].flatMap((wanted) => own.filter((match) => match.rank === wanted).map((match) => match.entry));
  });
}

/** Match only at the beginning of words: "di" must not find "Audit log". */
function beginsWord(label: string, word: string): boolean {
  for (let at = label.indexOf(word); at >= 0; at = label.indexOf(word, at + 1)) {
    if (!/[\p{L}\p{N}]/u.test(label[at - 1] ?? "") || !/[\p{L}\p{N}]/u.test(word[0] ?? "")) return true;
  }
  return false;
}

/** Return the entry that Enter runs: the selected one if it is shown, else the first. */
export function markedEntry<T extends Entry>(shown: T[], chosen: string | null): T | undefined {
  return shown.find((entry) => entry.id === chosen) ?? shown[0];
}

/** Return the entry `by` positions after the highlighted one, clamped to the list. */
export function stepFrom<T extends Entry>(shown: T[], marked: T | undefined, by: number): T | undefined {
  const place = marked ? shown.indexOf(marked) + by : 0;
  return shown[Math.max(0, Math.min(shown.length - 1, place))];
}
