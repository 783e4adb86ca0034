/** A diff with a file tree, in unified or split view. Fills its parent. */
import clsx from "clsx";
import { Columns2, FolderTree, FoldVertical, Keyboard, Rows2, UnfoldVertical } from "lucide-react";
import { type ReactNode, startTransition, useCallback, useLayoutEffect, useMemo, useRef, useState } from "react";
import type { Diff, FileDiff } from "@/api/types";
import { type CommentStore, quoteOf } from "@/features/conversation/comments";
import { pluralize } from "@/lib/format";
import { useStored } from "@/lib/stored";
import { Kbd } from "@/ui/badge";
import { IconButton } from "@/ui/button";
import { Sheet } from "@/ui/dialog";
import { Popover } from "@/ui/menu";
import { Empty } from "@/ui/states";
import { showError } from "@/ui/toast";
import { Counts } from "./diff-file";
import { DiffList, type Draft, type ListHandle } from "./diff-list";
import { FileTree } from "./file-tree";
import { patchOf, rowsOf } from "./rows";
import { sortInTreeOrder } from "./tree";
import { useViewed } from "./viewed-files";

export interface DiffViewProps {
  diff: Diff;
  /** If set, lines can be commented on, and the comments are kept in this store. */
  commentable?: CommentStore | undefined;
  /** If set, files can be marked as viewed, and the marks are stored under this name. */
  viewedAs?: string | undefined;
  /** Load one file whose lines were omitted; undefined if it is no longer in the diff. */
  onLoad?: ((file: FileDiff) => Promise<FileDiff | undefined>) | undefined;
  /** Additional actions in the header of a file. */
  fileActions?: ((file: FileDiff) => ReactNode) | undefined;
  /** Additional controls at the end of the toolbar. */
  bar?: ReactNode;
  empty?: ReactNode;
}

const TREE_PX = 700;
const SPLIT_PX = 760;
const TREE_WIDE = 256;
const AIMED_MS = 700;
const NO_COMMENTS: CommentStore["comments"] = [];

export function DiffView({ diff, commentable, viewedAs, onLoad, fileActions, bar, empty }: DiffViewProps) {
  const frame = useRef<HTMLDivElement>(null);
  const width = useWidth(frame);
  const [look, setLook] = useStored("diff.look", "unified");
  const [treeShown, setTreeShown] = useStored("diff.tree", true);
  const [treeOpen, setTreeOpen] = useState(false);
  const [choices, setChoices] = useState<ReadonlyMap<string, boolean>>(new Map());
  const [draft, setDraft] = useState<Draft | null>(null);
  const [current, setCurrent] = useState<string>();
  const viewed = useViewed(viewedAs ?? "");
  const list = useRef<ListHandle>(null);
  const { files, load, loading } = useLoaded(diff, onLoad);

  const beside = treeShown && width >= TREE_PX;
  const roomy = width - (beside ? TREE_WIDE : 0) >= SPLIT_PX;
  const split = look === "split" && roomy;
  const marks = viewedAs ? files.map((file) => (viewed.has(file) ? "1" : "0")).join("") : "";
  const folded = useMemo(
    () => new Set(files.filter((file, at) => choices.get(file.path) ?? marks[at] === "1").map((file) => file.path)),
    [files, choices, marks],
  );
  const comments = commentable?.comments ?? NO_COMMENTS;
  const { path, side, from, to } = draft ?? { path: "", side: "new" as const, from: 0, to: 0 };
  const rows = useMemo(
    () => rowsOf(files, { split, folded, comments, draft: path ? { path, side, from, to } : null }),
    [files, split, folded, comments, path, side, from, to],
  );
  const commented = useMemo(() => new Set(comments.map((comment) => comment.path)), [comments]);

  const fold = (which: string, on: boolean) => setChoices(new Map(choices).set(which, on));
  const foldAll = (on: boolean) => setChoices(new Map(files.map((file) => [file.path, on])));
  const view = (file: FileDiff, on: boolean) => {
    viewed.set(file, on);
    fold(file.path, on);
  };
  const save = ({ path, side, from, to, text }: Draft) => {
    const file = files.find((candidate) => candidate.path === path);
    const place = { path, side, from, to };
    commentable?.add({ ...place, text: text.trim(), quote: quoteOf(file && patchOf(file), place) });
    setDraft(null);
  };
  const aimed = useRef(0);
  const follow = useCallback((which: string | undefined) => {
    if (performance.now() > aimed.current) startTransition(() => setCurrent(which)); // Low priority: the tree may lag behind the lines.
  }, []);
  const choose = useCallback((which: string) => {
    setTreeOpen(false);
    setCurrent(which);
    aimed.current = performance.now() + AIMED_MS; // A file near the end cannot scroll to the top, but stays selected.
    list.current?.toFile(which);
  }, []);
  const seen = useMemo(
    () => new Set(files.filter((_, at) => marks[at] === "1").map((file) => file.path)),
    [files, marks],
  );
  const allFolded = files.length > 0 && folded.size === files.length;

  const tree = <FileTree files={files} current={current} onChoose={choose} viewed={seen} commented={commented} />;
  return (
    <div ref={frame} className="flex min-h-0 min-w-0 flex-1 flex-col">
      <div className="flex flex-wrap items-center gap-x-2 gap-y-1 border-b px-2 py-1">
        <IconButton
          size="sm"
          label={beside ? "Hide file tree" : "Show file tree"}
          aria-pressed={beside}
          onClick={() => (width >= TREE_PX ? setTreeShown(!treeShown) : setTreeOpen(true))}
        >
          <FolderTree className="size-4" aria-hidden />
        </IconButton>
        <p className="flex items-center gap-2 text-xs text-soft" aria-live="polite">
          <span>{pluralize(files.length, "file")}</span>
          <Counts added={diff.added} removed={diff.removed} />
          {seen.size > 0 && <span className="text-faint">{seen.size} viewed</span>}
        </p>
        <span className="mr-auto" />
        {bar}
        {roomy && (
          <IconButton
            size="sm"
            label={split ? "Switch to unified view" : "Switch to split view"}
            onClick={() => setLook(split ? "unified" : "split")}
          >
            {split ? <Rows2 className="size-4" aria-hidden /> : <Columns2 className="size-4" aria-hidden />}
          </IconButton>
        )}
        <IconButton
          size="sm"
          label={allFolded ? "Expand all files" : "Collapse all files"}
          onClick={() => foldAll(!allFolded)}
        >
          {allFolded ? (
            <UnfoldVertical className="size-4" aria-hidden />
          ) : (
            <FoldVertical className="size-4" aria-hidden />
          )}
        </IconButton>
        {width >= TREE_PX && <Keys commentable={!!commentable} />}
      </div>
      {diff.truncated && (
        <p className="border-b bg-warn-soft px-3 py-1 text-xs text-warn">Not all changed files are shown.</p>
      )}
      {files.length === 0 ? (
        <div className="min-h-0 flex-1 overflow-y-auto">
          {empty ?? <Empty title="No differences">Both sides are identical.</Empty>}
        </div>
      ) : (
        <div className="flex min-h-0 flex-1">
          {beside && <div className="flex w-64 shrink-0 flex-col border-r bg-page">{tree}</div>}
          <DiffList
            ref={list}
            files={files}
            rows={rows}
            folded={folded}
            onFold={fold}
            isViewed={viewed.has}
            onViewed={viewedAs ? view : undefined}
            store={commentable}
            draft={draft}
            onDraft={setDraft}
            onSaved={save}
            onLoad={load}
            loading={loading}
            onCurrent={follow}
            fileActions={fileActions}
            width={width - (beside ? TREE_WIDE : 0)}
          />
        </div>
      )}
      <Sheet open={treeOpen} onOpenChange={setTreeOpen} title="Changed files">
        <div className={clsx("-mx-4 -my-3 flex h-[calc(100%+1.5rem)] flex-col")}>{tree}</div>
      </Sheet>
    </div>
  );
}

/** Return the files in tree order, with files that were loaded individually in place of the originals. */
function useLoaded(diff: Diff, onLoad: DiffViewProps["onLoad"]) {
  const [loaded, setLoaded] = useState<ReadonlyMap<FileDiff, FileDiff>>(new Map());
  const [loading, setLoading] = useState<ReadonlySet<string>>(new Set());
  const ordered = useMemo(() => sortInTreeOrder(diff.files), [diff.files]);
  const files = useMemo(() => ordered.map((file) => loaded.get(file) ?? file), [ordered, loaded]);
  const loadFile = async (file: FileDiff) => {
    setLoading((now) => new Set(now).add(file.path));
    try {
      const found = await onLoad?.(file);
      if (found) setLoaded((now) => new Map(now).set(file, found));
    } catch (error) {
      showError("Could not load the file's changes")(error);
    } finally {
      setLoading((now) => new Set([...now].filter((path) => path !== file.path)));
    }
  };
  return { files, loading, load: onLoad ? (file: FileDiff) => void loadFile(file) : undefined };
}

function useWidth(frame: { current: HTMLElement | null }): number {
  const [width, setWidth] = useState(0);
  const measure = useCallback(() => setWidth(frame.current?.clientWidth ?? 0), [frame]);
  useLayoutEffect(() => {
    const element = frame.current;
    if (!element) return;
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    return () => observer.disconnect();
  }, [frame, measure]);
  return width;
}

function Keys({ commentable }: { commentable: boolean }) {
  const keys: [string, string][] = [
    ["j k", "next or previous line"],
    ["J K", "extend the selection"],
    ...(commentable ? ([["c", "comment on the selection"]] as [string, string][]) : []),
    ["n p", "next or previous file"],
    ["x", "collapse or expand the file"],
    ["v", "mark the file as viewed"],
  ];
  return (
    <Popover
      label="Diff keyboard shortcuts"
      trigger={
        <IconButton size="sm" label="Diff keyboard shortcuts">
          <Keyboard className="size-4" aria-hidden />
        </IconButton>
      }
    >
      <dl className="grid grid-cols-[auto_1fr] gap-x-3 gap-y-1 text-xs">
        {keys.map(([key, what]) => (
          <div key={key} className="contents">
            <dt className="flex gap-1">
              {key.split(" ").map((letter) => (
                <Kbd key={letter}>{letter}</Kbd>
              ))}
            </dt>
            <dd className="text-soft">{what}</dd>
          </div>
        ))}
      </dl>
    </Popover>
  );
}
