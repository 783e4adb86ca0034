/** Markdown reads the underscores of `calc/__init__.py` as emphasis. This plugin keeps paths and dunder names as written. */

interface Node {
  type: string;
  value?: string;
  children?: Node[];
  position?: { start: { offset?: number }; end: { offset?: number } };
}

/** The remark plugin. */
export function keepPaths() {
  return (tree: unknown, file: unknown) => walk(tree as Node, String(file));
}

function walk(node: Node, source: string): void {
  if (!node.children) return;
  node.children = node.children.map((child) => {
    const written = emphasised(child, source);
    if (written !== null) return { type: "text", value: written };
    walk(child, source);
    return child;
  });
}

/** Return the source text if it is part of a path or a name such as __main__; null if it is real emphasis or another node. */
function emphasised(node: Node, source: string): string | null {
  const [start, end] = [node.position?.start.offset, node.position?.end.offset];
  if ((node.type !== "strong" && node.type !== "emphasis") || start === undefined || end === undefined) return null;
  if (node.children?.some((child) => child.type !== "text")) return null;
  const written = source.slice(start, end);
  // only what is next to it, so that the time does not grow with the length of the text
  return isPath(written, source.slice(Math.max(0, start - 1), start), source.slice(end, end + 2)) ? written : null;
}

export function isPath(written: string, before: string, after: string): boolean {
  if (/\/$/.test(before) || /^\//.test(after)) return true;
  if (!written.startsWith("_")) return false;
  return /^__[a-z0-9]+(_[a-z0-9]+)*__$/.test(written) || /[\w.-]$/.test(before) || /^[.-]?\w/.test(after);
}
