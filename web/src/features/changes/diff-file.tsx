/** The header of a file in a diff, and the notes shown in place of its lines. */
import clsx from "clsx";
import { ChevronDown, ChevronRight, TriangleAlert } from "lucide-react";
import { memo, type ReactNode } from "react";
import type { FileDiff } from "@/api/types";
import { count } from "@/lib/format";
import { markHidden } from "@/lib/hidden-characters";
import type { Hunk } from "@/model/patch";
import { Button } from "@/ui/button";
import { CopyButton } from "@/ui/code";
import { Checkbox } from "@/ui/field";
import { VisibleText } from "@/ui/visible-text";
import type { Note } from "./rows";
import { LETTERS } from "./tree";

export function Letter({ change }: { change: FileDiff["change"] }) {
  const { letter, word, tone } = LETTERS[change];
  return (
    <span className={clsx("w-3.5 shrink-0 text-center font-mono text-2xs font-semibold", tone)} title={word}>
      <span aria-hidden>{letter}</span>
      <span className="sr-only">{word}</span>
    </span>
  );
}

export function Counts({
  added,
  removed,
  className,
}: {
  added: number | null;
  removed: number | null;
  className?: string;
}) {
  return (
    <span className={clsx("flex shrink-0 gap-1.5 font-mono text-2xs tabular-nums", className)}>
      {!!added && <span className="text-ok">+{count(added)}</span>}
      {!!removed && <span className="text-bad">−{count(removed)}</span>}
    </span>
  );
}

/** Describe a change of the file mode: its type or its executable bit. Null if it did not change. */
function modeWords(file: FileDiff): string | null {
  if (!file.oldMode || !file.newMode || file.oldMode === file.newMode) return null;
  const words: Record<string, string> = {
    "100644": "plain file",
    "100755": "executable",
    "120000": "link",
    "160000": "submodule",
  };
  return `${words[file.oldMode] ?? file.oldMode} → ${words[file.newMode] ?? file.newMode}`;
}

/** Memoized, so that it does not re-render while the user scrolls. */
export const FileHead = memo(function FileHead({
  file,
  folded,
  onFold,
  viewed,
  onViewed,
  actions,
}: {
  file: FileDiff;
  folded: boolean;
  onFold: (path: string, folded: boolean) => void;
  viewed?: boolean;
  onViewed?: ((file: FileDiff, viewed: boolean) => void) | undefined;
  actions?: ((file: FileDiff) => ReactNode) | undefined;
}) {
  const mode = modeWords(file);
  const Icon = folded ? ChevronRight : ChevronDown;
  return (
    <div className="flex min-h-9 items-center gap-1.5 border-y bg-sunken px-2">
      <h3 className="flex min-w-0 flex-1 items-center">
        <button
          type="button"
          aria-expanded={!folded}
          onClick={() => onFold(file.path, !folded)}
          className="flex min-w-0 items-center gap-1.5 py-1.5 text-left hover:text-accent"
        >
          <Icon className="size-3.5 shrink-0 text-faint" aria-hidden />
          <Letter change={file.change} />
          <Path file={file} />
        </button>
      </h3>
      {mode && <span className="rounded border border-line-strong px-1 text-2xs text-soft @max-md:hidden">{mode}</span>}
      <Counts added={file.added} removed={file.removed} />
      <span className="@max-md:hidden">
        <CopyButton text={file.path} label="Copy path" />
      </span>
      {actions?.(file)}
      {onViewed && (
        <span className="flex items-center gap-1.5 text-xs text-soft">
          <Checkbox
            checked={viewed ?? false}
            onChange={(on) => onViewed(file, on)}
            label={`Viewed ${markHidden(file.path)}`}
            hidden
          />
          <span aria-hidden className="@max-md:hidden">
            Viewed
          </span>
        </span>
      )}
    </div>
  );
});

function Path({ file }: { file: FileDiff }) {
  const slash = file.path.lastIndexOf("/") + 1;
  return (
    <span className="min-w-0 font-mono text-xs leading-4 [overflow-wrap:anywhere]">
      {file.oldPath && file.oldPath !== file.path && (
        <span className="text-faint">
          <VisibleText text={file.oldPath} /> →{" "}
        </span>
      )}
      <span className="text-soft">
        <VisibleText text={file.path.slice(0, slash)} />
      </span>
      <span className="font-semibold">
        <VisibleText text={file.path.slice(slash)} />
      </span>
    </span>
  );
}

export function FileNote({
  note,
  file,
  onLoad,
  loading,
}: {
  note: Note;
  file: FileDiff;
  onLoad?: (() => void) | undefined;
  loading: boolean;
}) {
  return (
    <div className="flex flex-wrap items-center gap-2 px-4 py-3 text-[13px] text-soft">
      {note === "hidden" && (
        <>
          <TriangleAlert className="size-4 shrink-0 text-warn" aria-hidden />
          Contains invisible or direction-changing characters.
        </>
      )}
      {note === "binary" && "Binary file not shown."}
      {note === "empty" && (file.change === "deleted" ? "Empty file, deleted" : "Empty file")}
      {note === "truncated" &&
        (onLoad
          ? "This file's changes were not loaded because the diff is large."
          : "This file's changes are too large to show here. Open the file instead.")}
      {note === "unpatched" && "The changed lines were not loaded."}
      {onLoad && (note === "truncated" || note === "unpatched") && (
        <Button size="sm" busy={loading} onClick={onLoad}>
          Load diff
        </Button>
      )}
    </div>
  );
}

/** The header of a hunk: its position in the file. */
export function HunkHead({ hunk }: { hunk: Hunk }) {
  return (
    <div className="flex gap-2 bg-info-soft px-2 font-mono text-2xs leading-6 text-info">
      <span className="shrink-0 select-none">
        @@ −{hunk.oldStart},{hunk.oldCount} +{hunk.newStart},{hunk.newCount} @@
      </span>
      <span className="truncate text-soft">
        <VisibleText text={hunk.heading} />
      </span>
    </div>
  );
}
