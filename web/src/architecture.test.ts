/** Imports go one way: lib, api, model, ui, live, features, shell. Features form no cycles. Biome checks cycles between files. */
import { readdirSync, readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";

const SOURCES = readdirSync(import.meta.dirname, { recursive: true, encoding: "utf8" })
  .map((path) => path.replaceAll("\\", "/"))
  .filter((path) => /\.tsx?$/.test(path) && !/\.test\.|\.d\.ts$/.test(path));
/** A folder may import from those before it. */
const LAYERS = ["lib", "api", "model", "ui", "live", "features", "shell"];

/** Return the package of a path such as `features/board/page`: `features/board`; of other layers the first folder. */
function packageOf(path: string): string {
  const [layer = "", feature] = path.split("/");
  return layer === "features" ? `${layer}/${feature}` : layer;
}

function importsOf(file: string, source: string): string[] {
  const folder = file.split("/").slice(0, -1);
  return [...source.matchAll(/(?:from\s+|import\(|import\s+)"(@\/|\.{1,2}\/)([^"]+)"/g)].map(([, start, rest = ""]) => {
    if (start === "@/") return rest;
    return new URL(rest, `file:///${[...folder, ...(start === "../" ? [".."] : [])].join("/")}/`).pathname.slice(1);
  });
}

const files = SOURCES.map((file) => ({
  file,
  imports: importsOf(file, readFileSync(`${import.meta.dirname}/${file}`, "utf8")),
}));

const imports = new Map<string, Set<string>>();
for (const { file, imports: targets } of files) {
  const from = packageOf(file);
  const known = imports.get(from) ?? new Set();
  for (const target of targets) if (packageOf(target) !== from) known.add(packageOf(target));
  imports.set(from, known);
}

/** Return the packages on a path from the package back to itself; null if there is none. */
function cycleFrom(start: string, path: string[] = [start], visited = new Set<string>()): string[] | null {
  for (const next of imports.get(path.at(-1) ?? "") ?? []) {
    if (next === start) return [...path, next];
    if (visited.has(next)) continue;
    visited.add(next);
    const found = cycleFrom(start, [...path, next], visited);
    if (found) return found;
  }
  return null;
}

describe("imports", () => {
  it("are found", () => {
    expect(imports.get("features/board")).toContain("features/tasks");
    expect(imports.get("shell")).toContain("features/previews");
  });

  it.each([...imports.keys()].filter((name) => name.startsWith("features/")))("%s is in no cycle", (name) => {
    expect(cycleFrom(name)).toBeNull();
  });

  it.each(LAYERS)("%s imports only from lower layers", (layer) => {
    const higher = LAYERS.slice(LAYERS.indexOf(layer) + 1);
    const wrong = files.filter(
      ({ file, imports: targets }) =>
        file.startsWith(`${layer}/`) && targets.some((target) => higher.includes(target.split("/")[0] ?? "")),
    );
    expect(wrong.map(({ file }) => file)).toEqual([]);
  });
});
