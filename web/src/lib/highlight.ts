/** Syntax highlighting with highlight.js, loaded on first use. Its output is read as tokens, never as HTML. */
import type { HLJSApi } from "highlight.js";

/** A token's kind ("" for plain text) and its text. */
export type Token = [kind: string, text: string];

const ENDINGS: Record<string, string> = {
  py: "python", pyi: "python", js: "javascript", mjs: "javascript", cjs: "javascript", jsx: "javascript", ts: "typescript",
  tsx: "typescript", json: "json", md: "markdown", css: "css", html: "xml", xml: "xml", svg: "xml", yml: "yaml", yaml: "yaml",
  toml: "ini", ini: "ini", cfg: "ini", sh: "bash", bash: "bash", zsh: "bash", go: "go", rs: "rust", java: "java", kt: "kotlin",
  rb: "ruby", php: "php", c: "c", h: "c", cc: "cpp", cpp: "cpp", hpp: "cpp", cs: "csharp", swift: "swift", sql: "sql",
  diff: "diff", patch: "diff", lua: "lua", r: "r", scss: "scss", less: "less", pl: "perl", graphql: "graphql",
}; // biome-ignore format: a table

export function languageOf(path: string): string | undefined {
  const name = path.split("/").pop() ?? "";
  if (name === "Makefile" || name.endsWith(".mk")) return "makefile";
  if (name.startsWith("Dockerfile")) return "bash";
  const ending = name.split(".").pop()?.toLowerCase() ?? "";
  return Object.hasOwn(ENDINGS, ending) ? ENDINGS[ending] : undefined; // a file may be called "constructor"
}

let loading: Promise<HLJSApi> | undefined;

interface Node {
  scope?: string;
  children: (Node | string)[];
}

/** Return lines of tokens; plain lines for an unknown language. */
export async function highlight(text: string, language: string): Promise<Token[][]> {
  loading ??= import("highlight.js/lib/common").then((module) => module.default);
  const hljs = await loading;
  if (!hljs.getLanguage(language)) return text.split("\n").map((line) => [["", line]]);
  const result = hljs.highlight(text, { language, ignoreIllegals: true });
  return lines((result._emitter as unknown as { rootNode: Node }).rootNode);
}

function lines(root: Node): Token[][] {
  const lines: Token[][] = [[]];
  const walk = (node: Node | string, kind: string) => {
    if (typeof node !== "string") {
      const own = node.scope ? (node.scope.split(".")[0] as string) : kind;
      for (const child of node.children) walk(child, own);
      return;
    }
    node.split("\n").forEach((piece, index) => {
      if (index) lines.push([]);
      if (piece) lines[lines.length - 1]?.push([kind, piece]);
    });
  };
  walk(root, "");
  return lines;
}
