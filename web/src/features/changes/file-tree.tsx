/** The changed files in their folders. A single tab stop; arrow keys move within it. */
import clsx from "clsx";
import { ChevronDown, ChevronRight, Eye, MessageSquare } from "lucide-react";
import { type KeyboardEvent, memo, useCallback, useEffect, useMemo, useRef, useState } from "react";
import type { FileDiff } from "@/api/types";
import { markHidden } from "@/lib/hidden-characters";
import { Input } from "@/ui/field";
import { VisibleText } from "@/ui/visible-text";
import { Counts, Letter } from "./diff-file";
import { listVisibleNodes, type Node } from "./tree";

export const FileTree = memo(function FileTree({
  files,
  current,
  onChoose,
  viewed,
  commented,
}: {
  files: FileDiff[];
  current: string | undefined;
  onChoose: (path: string) => void;
  /** Paths of files. */
  viewed: ReadonlySet<string>;
  commented: ReadonlySet<string>;
}) {
  const [filter, setFilter] = useState("");
  const [folded, setFolded] = useState<ReadonlySet<string>>(new Set());
  const nodes = useMemo(() => listVisibleNodes(files, filter, folded), [files, filter, folded]);
  const [stop, setStop] = useState<string>();
  const list = useRef<HTMLDivElement>(null);
  const focused = nodes.find((node) => node.path === stop) ?? nodes.find((node) => node.path === current) ?? nodes[0];

  useEffect(() => {
    if (current) list.current?.querySelector('[aria-selected="true"]')?.scrollIntoView({ block: "nearest" });
  }, [current]);

  const fold = useCallback((path: string, on: boolean) => {
    setFolded((now) => new Set(on ? [...now, path] : [...now].filter((value) => value !== path)));
  }, []);
  const focus = (node: Node | undefined) => {
    if (!node) return;
    setStop(node.path);
    requestAnimationFrame(() => list.current?.querySelector<HTMLElement>('[tabindex="0"]')?.focus());
  };
  const key = (event: KeyboardEvent) => {
    const at = nodes.findIndex((node) => node.path === focused?.path);
    const node = nodes[at];
    if (!node) return;
    const folder = node.kind === "folder";
    const above = nodes.slice(0, at).findLast((candidate) => candidate.depth < node.depth);
    const open = folder && !folded.has(node.path);
    switch (event.key) {
      case "ArrowDown":
        focus(nodes[at + 1]);
        break;
      case "ArrowUp":
        focus(nodes[at - 1]);
        break;
      case "Home":
        focus(nodes[0]);
        break;
      case "End":
        focus(nodes.at(-1));
        break;
      case "ArrowRight":
        if (open) focus(nodes[at + 1]);
        else if (folder) fold(node.path, false);
        break;
      case "ArrowLeft":
        if (open) fold(node.path, true);
        else focus(above);
        break;
      default:
        return;
    }
    event.preventDefault();
  };

  return (
    <div className="flex min-h-0 flex-1 flex-col">
      <div className="p-2">
        <Input
          value={filter}
          onChange={(event) => setFilter(event.target.value)}
          placeholder="Filter files"
          aria-label="Filter files"
          type="search"
        />
      </div>
      <div
        ref={list}
        role="tree"
        aria-label="Changed files"
        tabIndex={-1}
        className="min-h-0 flex-1 overflow-y-auto px-1 pb-2"
        onKeyDown={key}
      >
        {nodes.map((node) => (
          <Item
            key={`${node.kind}:${node.path}`}
            node={node}
            file={node.kind === "file" ? files[node.index] : undefined}
            folded={folded.has(node.path) && !filter}
            current={node.kind === "file" && node.path === current}
            stop={node === focused}
            viewed={viewed.has(node.path)}
            commented={commented.has(node.path)}
            onChoose={onChoose}
            onFold={fold}
            onFocus={setStop}
          />
        ))}
        {!nodes.length && <p className="px-2 py-4 text-center text-xs text-faint">No matching files.</p>}
      </div>
    </div>
  );
});

/** Memoized, because there may be a thousand of them. */
const Item = memo(function Item({
  node,
  file,
  folded,
  current,
  stop,
  viewed,
  commented,
  onChoose,
  onFold,
  onFocus,
}: {
  node: Node;
  file: FileDiff | undefined;
  folded: boolean;
  current: boolean;
  stop: boolean;
  viewed: boolean;
  commented: boolean;
  onChoose: (path: string) => void;
  onFold: (path: string, folded: boolean) => void;
  onFocus: (path: string) => void;
}) {
  return (
    <button
      type="button"
      role="treeitem"
      aria-level={node.depth + 1}
      aria-expanded={file ? undefined : !folded}
      aria-selected={current}
      tabIndex={stop ? 0 : -1}
      onFocus={() => onFocus(node.path)}
      onClick={() => (file ? onChoose(node.path) : onFold(node.path, !folded))}
      title={markHidden(node.path)}
      style={{ paddingLeft: 6 + node.depth * 12 }}
      className={clsx(
        "flex h-6.5 w-full items-center gap-1.5 rounded pr-1.5 text-left text-xs [content-visibility:auto] hover:bg-hover",
        current && "bg-accent-soft",
      )}
    >
      {file ? <Letter change={file.change} /> : <Fold folded={folded} />}
      <span className={clsx("min-w-0 flex-1 truncate", !file && "text-soft", viewed && "text-faint")}>
        <VisibleText text={node.name} />
      </span>
      {viewed && <Eye className="size-3 shrink-0 text-faint" aria-label="viewed" />}
      {commented && <MessageSquare className="size-3 shrink-0 text-accent" aria-label="has comments" />}
      {file ? (
        <Counts added={node.added} removed={node.removed} />
      ) : (
        <span className="text-2xs text-faint tabular-nums">
          {node.count}
          <span className="sr-only"> changed</span>
        </span>
      )}
    </button>
  );
});

function Fold({ folded }: { folded: boolean }) {
  const Icon = folded ? ChevronRight : ChevronDown;
  return <Icon className="size-3.5 shrink-0 text-faint" aria-hidden />;
}
