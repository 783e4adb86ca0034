import { expect, test } from "vitest";
import { type Entry, markedEntry, matchEntries, stepFrom } from "./palette-entries";

const entry = (group: string, label: string, found = false): Entry => ({
  id: label,
  group,
  label,
  found,
  run: () => {},
});
const ALL = [
  entry("Commands", "New task"),
  entry("Go to", "Settings"),
  entry("Tasks", "Described elsewhere", true),
  entry("Tasks", "Reset the Settings page"),
  entry("Projects", "Site settings"),
];
const labels = (words: string, entries = ALL) => matchEntries(entries, words).map((matchEntry) => matchEntry.label);

test("every search term must be the beginning of a word in the label, in any order and case", () => {
  expect(labels("ettings")).toEqual(["Described elsewhere"]);
  expect(labels("(x) fix", [entry("Tasks", "Fix login(x)")])).toEqual(["Fix login(x)"]);
  expect(labels("page SETT", ALL.slice(3))).toEqual(["Reset the Settings page"]);
  expect(labels("settings nowhere", ALL.slice(3))).toEqual([]);
});

test("groups keep their order; matches in the label come before other matches", () => {
  expect(labels("settings")).toEqual(["Settings", "Reset the Settings page", "Described elsewhere", "Site settings"]);
  expect(labels("  ")).toEqual(ALL.map((item) => item.label));
});

test("the first entry is highlighted unless a visible one was selected", () => {
  const shown = matchEntries(ALL, "settings");
  expect(markedEntry(shown, null)?.label).toBe("Settings");
  expect(markedEntry(shown, "Site settings")?.label).toBe("Site settings");
  expect(markedEntry(shown, "New task")?.label).toBe("Settings");
  expect(markedEntry([], "New task")).toBeUndefined();
});

test("steps stop at both ends of the list", () => {
  const shown = ALL.slice(0, 2);
  expect(stepFrom(shown, shown[0], 1)).toBe(shown[1]);
  expect(stepFrom(shown, shown[1], 1)).toBe(shown[1]);
  expect(stepFrom(shown, shown[0], -1)).toBe(shown[0]);
  expect(stepFrom([], undefined, 1)).toBeUndefined();
});
