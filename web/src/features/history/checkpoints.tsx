/** Checkpoints: all files at a point in time, committed or not. Restoring one creates a new sandbox from it. */
import { useLocation, useNavigate } from "@tanstack/react-router";
import { Archive, History } from "lucide-react";
import { useState } from "react";
import { useRestoreCheckpoint, useSaveCheckpoint } from "@/api/queries/git";
import type { Checkpoint } from "@/api/types";
import { pluralize } from "@/lib/format";
import { Button } from "@/ui/button";
import { Confirm } from "@/ui/dialog";
import { Ago } from "@/ui/time";
import { showError, toast } from "@/ui/toast";
import { REASONS } from "./timeline";

const SHOWN = 3;

export function Checkpoints({ checkpoints, sessionId }: { checkpoints: Checkpoint[]; sessionId: string }) {
  const [all, setAll] = useState(false);
  const shown = all ? checkpoints : checkpoints.slice(0, SHOWN);
  return (
    <ul className="flex flex-col">
      {shown.map((checkpoint) => (
        <li key={checkpoint.id} className="flex flex-wrap items-center gap-x-2 py-0.5 text-xs text-soft">
          <Archive className="size-3.5 shrink-0 text-faint" aria-hidden />
          <span>{REASONS[checkpoint.reason]}</span>
          <Ago at={checkpoint.createdAt} className="text-faint" />
          <span className="mr-auto text-faint">
            {checkpoint.changed ? `${pluralize(checkpoint.changed, "file")} not committed` : "all committed"}
          </span>
          <RestoreButton checkpoint={checkpoint} sessionId={sessionId} />
        </li>
      ))}
      {checkpoints.length > SHOWN && (
        <li>
          <button
            type="button"
            aria-expanded={all}
            className="py-1 text-xs text-accent hover:underline"
            onClick={() => setAll(!all)}
          >
            {all ? "Show fewer checkpoints" : `${pluralize(checkpoints.length - SHOWN, "more checkpoint")}`}
          </button>
        </li>
      )}
    </ul>
  );
}

function RestoreButton({ checkpoint, sessionId }: { checkpoint: Checkpoint; sessionId: string }) {
  const navigate = useNavigate();
  const { pathname } = useLocation();
  const restore = useRestoreCheckpoint({
    onSuccess: async (operation) => {
      toast.success(operation.status === "completed" ? "Restored" : "Restoring the checkpoint", {
        description: "The session has a new sandbox with the files of the checkpoint.",
      });
      // Task and session pages switch to the new sandbox themselves; a sandbox page would stay on the old one.
      if (!pathname.startsWith("/tasks/") && !pathname.startsWith("/sessions/")) {
        await navigate({
          to: "/sessions/$sessionId",
          params: { sessionId: operation.sessionId ?? sessionId },
          search: { tab: "changes" },
        });
      }
    },
    onError: showError("Could not restore the checkpoint"),
  });
  return (
    <Confirm
      trigger={
        <Button
          size="sm"
          look="ghost"
          busy={restore.isPending}
          aria-label={`Restore checkpoint from ${new Date(checkpoint.createdAt).toLocaleString()}`}
        >
          <History className="size-3.5" aria-hidden />
          Restore
        </Button>
      }
      title="Restore this checkpoint?"
      action="Restore"
      onConfirm={() => restore.mutateAsync({ checkpointId: checkpoint.id, sessionId })}
    >
      The session gets a new sandbox with all files as they were <Ago at={checkpoint.createdAt} />. The current sandbox
      is deleted: its files are saved in a checkpoint first, and its processes are stopped.
    </Confirm>
  );
}

export function SaveCheckpointButton({ sandboxId, sessionId }: { sandboxId: string; sessionId: string }) {
  const save = useSaveCheckpoint({
    onSuccess: () => toast.success("Checkpoint saved"),
    onError: showError("Could not save a checkpoint"),
  });
  return (
    <Button size="sm" busy={save.isPending} onClick={() => save.mutate({ sandboxId, sessionId })}>
      {!save.isPending && <Archive className="size-3.5" aria-hidden />}
      Save checkpoint
    </Button>
  );
}
