import clsx from "clsx";
import { ChevronRight, File, FileSymlink, Folder, FolderOpen } from "lucide-react";
import { useState } from "react";
import { useFolder } from "@/api/queries/files";
import type { FileEntry } from "@/api/types";
import { Button } from "@/ui/button";
import { errorMessage } from "@/ui/states";

const FIRST_COUNT = 300;
const MORE_COUNT = 1000;

interface Props {
  sandboxId: string;
  path: string;
  chosen: string | undefined;
  open: ReadonlySet<string>;
  onToggle: (path: string) => void;
  onChoose: (path: string) => void;
  unsaved: (path: string) => boolean;
  depth?: number;
}

/** The contents of a folder. Subfolders are read when they are expanded. */
export function Tree(props: Props) {
  const { sandboxId, path, depth = 0 } = props;
  const [limit, setLimit] = useState(FIRST_COUNT);
  const entries = useFolder(sandboxId, path);
  const style = { paddingLeft: depth * 14 + 8 };
  if (entries.error && !entries.data) {
    return (
      <p role="alert" className="px-2 py-1 text-xs text-bad" style={style}>
        {errorMessage(entries.error)}{" "}
        <button type="button" className="underline" onClick={() => entries.refetch()}>
          Retry
        </button>
      </p>
    );
  }
  if (!entries.data) {
    return (
      <p role="status" className="py-1 text-xs text-faint" style={style}>
        Loading
      </p>
    );
  }
  const { items, truncated } = entries.data;
  if (!items.length) {
    return (
      <p className="py-1 text-xs text-faint" style={style}>
        Empty
      </p>
    );
  }
  return (
    <ul>
      {items.slice(0, limit).map((entry) => (
        <Item key={entry.path} entry={entry} {...props} depth={depth} />
      ))}
      {items.length > limit ? (
        <li style={style}>
          <Button size="sm" look="ghost" onClick={() => setLimit(limit + MORE_COUNT)}>
            {items.length - limit} more
          </Button>
        </li>
      ) : (
        truncated && (
          <li className="py-1 text-xs text-faint" style={style}>
            Showing the first {items.length.toLocaleString("en")} entries. Use the terminal for the rest.
          </li>
        )
      )}
    </ul>
  );
}

function Item({ entry, depth = 0, ...props }: Props & { entry: FileEntry }) {
  const isFolder = entry.kind === "dir";
  const shown = isFolder && props.open.has(entry.path);
  const Icon = isFolder ? (shown ? FolderOpen : Folder) : entry.kind === "symlink" ? FileSymlink : File;
  const unsaved = !isFolder && props.unsaved(entry.path);
  return (
    <li>
      <button
        type="button"
        title={entry.symlinkTarget ? `${entry.name} → ${entry.symlinkTarget}` : entry.name}
        aria-expanded={isFolder ? shown : undefined}
        aria-current={entry.path === props.chosen ? "true" : undefined}
        onClick={() => (isFolder ? props.onToggle(entry.path) : props.onChoose(entry.path))}
        className={clsx(
          "flex h-6 w-full items-center gap-1.5 pr-2 text-left text-[13px] outline-offset-[-2px] hover:bg-hover",
          entry.path === props.chosen && "bg-sunken font-medium",
        )}
        style={{ paddingLeft: depth * 14 + 8 }}
      >
        <ChevronRight
          className={clsx(
            "size-3 shrink-0 text-faint transition-transform",
            shown && "rotate-90",
            !isFolder && "invisible",
          )}
          aria-hidden
        />
        <Icon className={clsx("size-3.5 shrink-0", isFolder ? "text-accent" : "text-faint")} aria-hidden />
        <span className="truncate">{entry.name}</span>
        {unsaved && (
          <span className="ml-auto size-2 shrink-0 rounded-full bg-warn" role="img" aria-label="Unsaved changes" />
        )}
      </button>
      {shown && <Tree {...props} path={entry.path} depth={depth + 1} />}
    </li>
  );
}
