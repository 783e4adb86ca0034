/** Changed files as a tree of folders. Pure. */
import type { FileDiff } from "@/api/types";

export interface Node {
  kind: "folder" | "file";
  /** For a folder: its name, joined with nested folders that are its only content ("src/app"). */
  name: string;
  path: string;
  depth: number;
  added: number;
  removed: number;
  /** For a folder: the number of files in it. */
  count: number;
  /** For a file: its index in the diff. */
  index: number;
}

interface Folder {
  folders: Map<string, Folder>;
  files: { name: string; index: number }[];
}

const makeFolder = (): Folder => ({ folders: new Map(), files: [] });

/** Return the visible nodes in order, folders first. `folded` contains the paths of collapsed folders. */
export function listVisibleNodes(files: FileDiff[], filter: string, folded: ReadonlySet<string>): Node[] {
  const wanted = filter.trim().toLowerCase();
  const root = makeFolder();
  files.forEach((file, index) => {
    if (wanted && !file.path.toLowerCase().includes(wanted) && !file.oldPath?.toLowerCase().includes(wanted)) return;
    const parts = file.path.split("/");
    const name = parts.pop() as string;
    let folder = root;
    for (const part of parts) {
      let next = folder.folders.get(part);
      if (!next) {
        next = makeFolder();
        folder.folders.set(part, next);
      }
      folder = next;
    }
    folder.files.push({ name, index });
  });
  const nodes: Node[] = [];
  appendNodes(root, "", 0, files, wanted ? new Set() : folded, nodes);
  return nodes;
}

function appendNodes(
  folder: Folder,
  parentPath: string,
  depth: number,
  files: FileDiff[],
  folded: ReadonlySet<string>,
  nodes: Node[],
): void {
  for (const [first, child] of [...folder.folders].sort(([a], [b]) => a.localeCompare(b))) {
    let name = first;
    let inner = child;
    while (!inner.files.length && inner.folders.size === 1) {
      const [[next, only]] = [...inner.folders] as [[string, Folder]];
      name += `/${next}`;
      inner = only;
    }
    const path = parentPath ? `${parentPath}/${name}` : name;
    const node: Node = { kind: "folder", name, path, depth, index: -1, ...sumChanges(inner, files) };
    nodes.push(node);
    if (!folded.has(path)) appendNodes(inner, path, depth + 1, files, folded, nodes);
  }
  for (const { name, index } of [...folder.files].sort((a, b) => a.name.localeCompare(b.name))) {
    const file = files[index] as FileDiff;
    nodes.push({
      kind: "file",
      name,
      path: file.path,
      depth,
      added: file.added ?? 0,
      removed: file.removed ?? 0,
      count: 1,
      index,
    });
  }
}

function sumChanges(folder: Folder, files: FileDiff[]): { added: number; removed: number; count: number } {
  const sum = { added: 0, removed: 0, count: 0 };
  for (const { index } of folder.files) {
    sum.added += files[index]?.added ?? 0;
    sum.removed += files[index]?.removed ?? 0;
    sum.count += 1;
  }
  for (const child of folder.folders.values()) {
    const inner = sumChanges(child, files);
    sum.added += inner.added;
    sum.removed += inner.removed;
    sum.count += inner.count;
  }
  return sum;
}

/** Return the files in tree order, so that the diff and the tree are in the same order. */
export function sortInTreeOrder(files: FileDiff[]): FileDiff[] {
  return listVisibleNodes(files, "", new Set())
    .filter((node) => node.kind === "file")
    .map((node) => files[node.index] as FileDiff);
}

export const LETTERS: Record<FileDiff["change"], { letter: string; word: string; tone: string }> = {
  added: { letter: "A", word: "added", tone: "text-ok" },
  untracked: { letter: "A", word: "added", tone: "text-ok" },
  modified: { letter: "M", word: "modified", tone: "text-warn" },
  deleted: { letter: "D", word: "deleted", tone: "text-bad" },
  renamed: { letter: "R", word: "renamed", tone: "text-info" },
  copied: { letter: "C", word: "copied", tone: "text-info" },
  type_changed: { letter: "T", word: "type changed", tone: "text-warn" },
  conflicted: { letter: "U", word: "in conflict", tone: "text-bad" },
};
