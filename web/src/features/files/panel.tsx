import clsx from "clsx";
import { FilePlus, FileText, RefreshCw, Upload } from "lucide-react";
import { type DragEvent, useEffect, useRef, useState } from "react";
import { containsAny, useDeleteFile } from "@/api/queries/files";
import { useCheckoutFolder } from "@/api/queries/git";
import { useRefreshFiles } from "@/api/refresh";
import { ResumePrompt } from "@/features/terminal/resume-prompt";
import { IconButton } from "@/ui/button";
import { Confirm } from "@/ui/dialog";
import { Empty, Loaded } from "@/ui/states";
import { showError } from "@/ui/toast";
import { useUnsaved } from "./drafts";
import { DeleteButton, FileView } from "./file-view";
import { NewFileDialog } from "./new-file";
import { foldersBetween, HOME, isWithin, listCrumbs, nameOf, parentOf } from "./paths";
import { Tree } from "./tree";
import { UploadList, useUploads } from "./uploads";

interface Props {
  sandboxId: string;
  /** The folder to start in. Default: the repository's folder, or the home folder. */
  root?: string | null | undefined;
  /** The open file; a folder ends with a slash. */
  at?: string | undefined;
  onAt: (path: string | undefined) => void;
}

/** The files of a sandbox: view, edit, upload and download. */
export function FilesPanel({ sandboxId, root, at, onAt }: Props) {
  const checkout = useCheckoutFolder(sandboxId, { enabled: !root });
  return (
    <ResumePrompt
      sandboxId={sandboxId}
      action="Resume and show files"
      explanation="Its files are kept. Opening them resumes the sandbox, which pauses again when idle."
    >
      {root ? (
        <Files key={sandboxId} sandboxId={sandboxId} root={root} at={at} onAt={onAt} />
      ) : (
        <Loaded query={checkout}>
          {(found) => <Files key={sandboxId} sandboxId={sandboxId} root={found ?? HOME} at={at} onAt={onAt} />}
        </Loaded>
      )}
    </ResumePrompt>
  );
}

function Files({ sandboxId, root, at, onAt }: Omit<Props, "root"> & { root: string }) {
  const refreshFiles = useRefreshFiles(sandboxId);
  const isFolder = at?.endsWith("/") ?? false;
  const file = at && !isFolder ? at : undefined;
  const [base, setBase] = useState(() => {
    if (isFolder && at) return stripTrailingSlash(at);
    return file && !isWithin(file, root) ? parentOf(file) : root;
  });
  const [open, setOpen] = useState<ReadonlySet<string>>(() => new Set(file ? foldersBetween(base, file) : []));
  const [lastFolder, setLastFolder] = useState<string>(); // the folder opened last, the target of uploads
  const [creating, setCreating] = useState(false);
  const [dragging, setDragging] = useState(false);
  const [pending, setPending] = useState<File[] | null>(null);
  const picker = useRef<HTMLInputElement>(null);
  const unsaved = useUnsaved(sandboxId);
  const { uploads, start, dismiss } = useUploads(sandboxId);
  const target = lastFolder && isWithin(lastFolder, base) ? lastFolder : base;

  useEffect(() => {
    if (isFolder && at) setBase(stripTrailingSlash(at));
  }, [at, isFolder]);

  const remove = useDeleteFile({
    onSuccess: (_, { path }) => {
      setLastFolder(parentOf(path));
      setOpen(new Set([...open].filter((folder) => !isWithin(folder, path))));
      if (file && isWithin(file, path)) onAt(undefined);
    },
    onError: showError("Could not delete"),
  });
  const toggle = (path: string) => {
    const next = new Set(open);
    if (next.delete(path)) setLastFolder(parentOf(path));
    else {
      next.add(path);
      setLastFolder(path);
    }
    setOpen(next);
  };
  const openFolder = (path: string) => {
    setBase(path);
    setLastFolder(undefined);
    onAt(path === "/" ? "/" : `${path}/`);
  };
  const upload = async (files: File[]) => {
    if (!files.length) return;
    try {
      const exists = await containsAny(sandboxId, target, files);
      if (exists) setPending(files);
      else void start(target, files);
    } catch (error) {
      showError("Could not upload")(error);
    }
  };
  const dropHandlers = {
    onDragOver: (event: DragEvent) => {
      if (!event.dataTransfer.types.includes("Files")) return;
      event.preventDefault();
      setDragging(true);
    },
    onDragLeave: (event: DragEvent) => {
      if (!event.currentTarget.contains(event.relatedTarget as Node | null)) setDragging(false);
    },
    onDrop: (event: DragEvent) => {
      event.preventDefault();
      setDragging(false);
      void upload([...event.dataTransfer.files]);
    },
  };

  return (
    <section aria-label="Files" {...dropHandlers} className="relative flex min-h-0 flex-1 flex-col md:flex-row">
      <div
        className={clsx(
          "min-h-0 flex-col md:flex md:w-64 md:shrink-0 md:border-r",
          file ? "hidden" : "flex flex-1 md:flex-none",
        )}
      >
        <div className="flex shrink-0 items-start gap-0.5 border-b px-1.5 py-1">
          <Crumbs folder={base} onOpen={openFolder} />
          <IconButton size="sm" label="New file" onClick={() => setCreating(true)}>
            <FilePlus className="size-3.5" aria-hidden />
          </IconButton>
          <IconButton size="sm" label={`Upload to ${target}`} onClick={() => picker.current?.click()}>
            <Upload className="size-3.5" aria-hidden />
          </IconButton>
          {target !== base && (
            <Confirm
              title={`Delete ${nameOf(target)} and its contents?`}
              action="Delete folder"
              onConfirm={() => remove.mutateAsync({ sandboxId, path: target })}
              trigger={<DeleteButton label={`Delete folder ${nameOf(target)}`} />}
            >
              <span className="break-all">{target}</span> is deleted from the sandbox. Committed versions stay in Git.
            </Confirm>
          )}
          <IconButton size="sm" label="Refresh" onClick={refreshFiles}>
            <RefreshCw className="size-3.5" aria-hidden />
          </IconButton>
          <input
            ref={picker}
            type="file"
            multiple
            className="sr-only"
            tabIndex={-1}
            aria-label="Files to upload"
            onChange={(event) => {
              void upload([...(event.target.files ?? [])]);
              event.target.value = "";
            }}
          />
        </div>
        <nav aria-label="Folders and files" className="min-h-0 flex-1 overflow-y-auto bg-surface py-1">
          <Tree
            sandboxId={sandboxId}
            path={base}
            chosen={file}
            open={open}
            onToggle={toggle}
            onChoose={onAt}
            unsaved={unsaved}
          />
        </nav>
        <UploadList uploads={uploads} onDismiss={dismiss} />
      </div>
      {file ? (
        <FileView
          key={file}
          sandboxId={sandboxId}
          path={file}
          onBack={() => onAt(undefined)}
          onRemoved={() => onAt(undefined)}
        />
      ) : (
        <div className="hidden min-w-0 flex-1 md:block">
          <Empty title="Choose a file" icon={<FileText className="size-6" aria-hidden />}>
            Or drop files here to upload them to {target}.
          </Empty>
        </div>
      )}
      {dragging && (
        <div className="pointer-events-none absolute inset-1 z-10 grid place-items-center rounded-lg border-2 border-dashed border-accent bg-accent-soft/90 text-[13px] font-medium text-accent">
          Upload to {target}
        </div>
      )}
      <NewFileDialog
        sandboxId={sandboxId}
        folder={target}
        open={creating}
        onOpenChange={setCreating}
        onCreated={onAt}
      />
      <Confirm
        open={pending !== null}
        onOpenChange={(shown) => !shown && setPending(null)}
        title="Replace existing files?"
        action="Replace"
        onConfirm={() => pending && void start(target, pending)}
      >
        {target} already contains files with the same names.
      </Confirm>
    </section>
  );
}

function stripTrailingSlash(folder: string): string {
  return folder.replace(/\/+$/, "") || "/";
}

function Crumbs({ folder, onOpen }: { folder: string; onOpen: (path: string) => void }) {
  const folders = listCrumbs(folder);
  return (
    <nav aria-label="Current folder" className="mr-auto flex min-w-0 flex-wrap items-center py-1 text-xs">
      {folders.map((item, index) => (
        <span key={item.path} className="flex min-w-0 items-center">
          <button
            type="button"
            aria-current={index === folders.length - 1 ? "page" : undefined}
            onClick={() => onOpen(item.path)}
            className="max-w-32 truncate rounded px-1 text-soft hover:bg-hover hover:text-text aria-[current=page]:font-medium aria-[current=page]:text-text"
          >
            {item.name}
          </button>
          {index > 0 && index < folders.length - 1 && <span className="text-faint">/</span>}
        </span>
      ))}
    </nav>
  );
}
