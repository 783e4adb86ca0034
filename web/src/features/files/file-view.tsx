import { ArrowLeft, Download, RefreshCw, Trash2 } from "lucide-react";
import { useEffect, useState } from "react";
import { type OpenedFile, useDeleteFile, useDownloadFile, useFileContent, useFolder } from "@/api/queries/files";
import { formatBytes } from "@/lib/format";
import { Button, IconButton } from "@/ui/button";
import { Confirm } from "@/ui/dialog";
import { Empty, ErrorState, Loading } from "@/ui/states";
import { Ago } from "@/ui/time";
import { showError } from "@/ui/toast";
import { deleteDraft, getDraft } from "./drafts";
import { EDIT_BYTES, IMAGE_BYTES, imageType, nameOf, parentOf, textOf } from "./paths";
import { TextFile } from "./text-file";

interface Props {
  sandboxId: string;
  path: string;
  onBack: () => void;
  onRemoved: () => void;
}

/** One file: a text editor, an image, or a download button. */
export function FileView({ sandboxId, path, onBack, onRemoved }: Props) {
  const limit = imageType(path) ? IMAGE_BYTES : EDIT_BYTES;
  const opened = useFileContent(sandboxId, path, () => limit);
  const remove = useDeleteFile({
    onSuccess: () => {
      deleteDraft(sandboxId, path);
      onRemoved();
    },
    onError: showError("Could not delete"),
  });
  const name = nameOf(path);
  const siblings = useFolder(sandboxId, parentOf(path));
  const entry = siblings.data?.items.find((sibling) => sibling.path === path) ?? opened.data?.entry;
  return (
    <section aria-label={name} className="flex min-h-0 min-w-0 flex-1 flex-col">
      <div className="flex shrink-0 items-center gap-1 border-b bg-surface px-2 py-1">
        <IconButton size="sm" label="Back to files" className="md:!hidden" onClick={onBack}>
          <ArrowLeft className="size-4" aria-hidden />
        </IconButton>
        <h2 className="min-w-0 truncate px-1 font-mono text-xs font-medium" title={path}>
          {name}
        </h2>
        {entry && (
          <span className="mr-auto hidden shrink-0 text-2xs text-faint tabular-nums sm:inline">
            {formatBytes(entry.size)}, <Ago at={entry.modifiedAt} />
          </span>
        )}
        <span className="ml-auto flex shrink-0 items-center">
          <IconButton
            size="sm"
            label="Reload"
            busy={opened.isFetching}
            disabled={getDraft(sandboxId, path) !== undefined}
            onClick={() => opened.refetch()}
          >
            {!opened.isFetching && <RefreshCw className="size-3.5" aria-hidden />}
          </IconButton>
          <DownloadButton sandboxId={sandboxId} path={path} />
          <Confirm
            title={`Delete ${name}?`}
            action="Delete"
            onConfirm={() => remove.mutateAsync({ sandboxId, path })}
            trigger={<DeleteButton label="Delete" />}
          >
            The file is deleted from the sandbox. Committed versions stay in Git.
          </Confirm>
        </span>
      </div>
      {opened.data ? (
        <Body
          key={`${path}:${opened.dataUpdatedAt}`}
          sandboxId={sandboxId}
          path={path}
          opened={opened.data}
          limit={limit}
          reload={() => opened.refetch()}
        />
      ) : opened.error ? (
        <ErrorState error={opened.error} retry={() => opened.refetch()} />
      ) : (
        <Loading />
      )}
    </section>
  );
}

export function DeleteButton({ label, ...props }: { label: string }) {
  return (
    <IconButton {...props} size="sm" label={label}>
      <Trash2 className="size-3.5" aria-hidden />
    </IconButton>
  );
}

function DownloadButton({ sandboxId, path, words = false }: { sandboxId: string; path: string; words?: boolean }) {
  const download = useDownloadFile({ onError: showError("Could not download the file") });
  const start = () => download.mutate({ sandboxId, path, name: nameOf(path) });
  const icon = !download.isPending && <Download className="size-3.5" aria-hidden />;
  return words ? (
    <Button busy={download.isPending} onClick={start}>
      {icon} Download
    </Button>
  ) : (
    <IconButton size="sm" label="Download" busy={download.isPending} onClick={start}>
      {icon}
    </IconButton>
  );
}

function Body({
  sandboxId,
  path,
  opened,
  limit,
  reload,
}: {
  sandboxId: string;
  path: string;
  opened: OpenedFile;
  limit: number;
  reload: () => Promise<unknown>;
}) {
  const { entry } = opened;
  const [text] = useState(() => (imageType(path) ? null : textOf(opened.bytes)));
  const download = <DownloadButton sandboxId={sandboxId} path={path} words />;
  if (entry.kind === "dir") return <Empty title="This is a folder">Open it in the file list.</Empty>;
  if (entry.size > limit) {
    return (
      <Empty title="Too large to show" action={download}>
        The size of this file is {formatBytes(entry.size)}. Files up to {formatBytes(limit)} can be shown.
      </Empty>
    );
  }
  if (imageType(path)) return <Picture path={path} bytes={opened.bytes} />;
  if (text === null) {
    return (
      <Empty title="Not a text file" action={download}>
        The file ({formatBytes(entry.size)}) is not UTF-8 text.
      </Empty>
    );
  }
  return <TextFile sandboxId={sandboxId} path={path} text={text} entry={entry} reload={reload} />;
}

function Picture({ path, bytes: data }: { path: string; bytes: Uint8Array<ArrayBuffer> }) {
  const [url, setUrl] = useState<string>();
  const [broken, setBroken] = useState(false);
  useEffect(() => {
    const objectUrl = URL.createObjectURL(new Blob([data], { type: imageType(path) as string }));
    setUrl(objectUrl);
    return () => URL.revokeObjectURL(objectUrl);
  }, [path, data]);
  if (broken)
    return <Empty title="Cannot display this image">It may be damaged or have the wrong file extension.</Empty>;
  return (
    <div className="grid min-h-0 flex-1 place-items-center overflow-auto bg-sunken p-4">
      {url && <img src={url} alt={nameOf(path)} className="max-w-full" onError={() => setBroken(true)} />}
    </div>
  );
}
