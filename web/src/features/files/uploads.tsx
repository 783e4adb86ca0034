import { X } from "lucide-react";
import { useCallback, useRef, useState } from "react";
import { uploadFile } from "@/api/queries/files";
import { useRefreshFiles } from "@/api/refresh";
import { formatBytes } from "@/lib/format";
import { IconButton } from "@/ui/button";
import { errorMessage } from "@/ui/states";
import { join } from "./paths";

export interface Upload {
  id: number;
  name: string;
  size: number;
  /** From 0 to 1. */
  progress: number;
  state: "waiting" | "sending" | "done" | "failed";
  error?: string;
}

/** Upload files to a folder one after the other, with progress for each. */
export function useUploads(sandboxId: string) {
  const refreshFiles = useRefreshFiles(sandboxId);
  const [uploads, setUploads] = useState<Upload[]>([]);
  const nextId = useRef(1);
  const controllers = useRef(new Map<number, AbortController>());
  const change = useCallback(
    (id: number, to: Partial<Upload>) =>
      setUploads((all) => all.map((upload) => (upload.id === id ? { ...upload, ...to } : upload))),
    [],
  );
  const start = useCallback(
    async (folder: string, files: File[]) => {
      const batch = files.map((file) => ({ file, id: nextId.current++ }));
      for (const { id } of batch) controllers.current.set(id, new AbortController());
      setUploads((all) => [
        ...all.filter((upload) => upload.state !== "done"),
        ...batch.map(({ file, id }) => ({
          id,
          name: file.name,
          size: file.size,
          progress: 0,
          state: "waiting" as const,
        })),
      ]);
      for (const { file, id } of batch) {
        const controller = controllers.current.get(id);
        const path = join(folder, file.name);
        if (!controller || controller.signal.aborted || !path) continue;
        change(id, { state: "sending" });
        try {
          await uploadFile(sandboxId, path, file, (progress) => change(id, { progress }), controller.signal);
          change(id, { state: "done", progress: 1 });
        } catch (error) {
          change(id, { state: "failed", error: errorMessage(error) });
        }
      }
      void refreshFiles();
    },
    [sandboxId, refreshFiles, change],
  );
  const dismiss = useCallback((id: number) => {
    controllers.current.get(id)?.abort();
    controllers.current.delete(id);
    setUploads((all) => all.filter((upload) => upload.id !== id));
  }, []);
  return { uploads, start, dismiss };
}

export function UploadList({ uploads, onDismiss }: { uploads: Upload[]; onDismiss: (id: number) => void }) {
  if (!uploads.length) return null;
  return (
    <ul
      aria-label="Uploads"
      aria-live="polite"
      className="max-h-40 shrink-0 overflow-y-auto border-t bg-surface text-xs"
    >
      {uploads.map((upload) => (
        <li key={upload.id} className="flex items-center gap-2 px-3 py-1">
          <span className="min-w-0 flex-1">
            <span className="block truncate">{upload.name}</span>
            {upload.state === "failed" ? (
              <span className="block text-bad">{upload.error}</span>
            ) : (
              <progress
                className="h-1 w-full accent-(--accent)"
                value={upload.progress}
                max={1}
                aria-label={`Upload of ${upload.name}`}
              />
            )}
          </span>
          <span className="shrink-0 text-faint tabular-nums">
            {upload.state === "done" ? "Done" : upload.state === "waiting" ? "Waiting" : formatBytes(upload.size)}
          </span>
          <IconButton
            size="sm"
            label={
              upload.state === "sending" || upload.state === "waiting" ? `Cancel upload of ${upload.name}` : "Dismiss"
            }
            onClick={() => onDismiss(upload.id)}
          >
            <X className="size-3.5" aria-hidden />
          </IconButton>
        </li>
      ))}
    </ul>
  );
}
