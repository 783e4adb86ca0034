import { useNavigate } from "@tanstack/react-router";
import { Archive, Ellipsis, GitFork, ListPlus, Pencil, Trash2 } from "lucide-react";
import { useState } from "react";
import type { Session } from "@/api/types";
import { isAllowed } from "@/features/sandboxes/actions";
import { NewTaskDialog } from "@/features/tasks/new-task";
import { Button, IconButton } from "@/ui/button";
import { Confirm, Dialog } from "@/ui/dialog";
import { Field, Input } from "@/ui/field";
import { Menu, MenuItem, MenuLine } from "@/ui/menu";
import { useSessionActions } from "./use-session-actions";

/** Actions for a session: rename, fork, start a task from it, archive, delete. `onDeleted` is called after deletion. */
export function SessionMenu({ session, onDeleted }: { session: Session; onDeleted?: () => void }) {
  const [dialog, setDialog] = useState<"rename" | "task" | "delete" | null>(null);
  const { fork, archive, remove } = useSessionActions();
  const navigate = useNavigate();
  const forkSession = () =>
    fork.mutate(session.id, {
      onSuccess: (copy) => navigate({ to: "/sessions/$sessionId", params: { sessionId: copy.id } }),
    });
  const close = () => setDialog(null);
  return (
    <>
      <Menu
        trigger={
          <IconButton label={`Actions for ${session.title}`} size="sm">
            <Ellipsis className="size-4" aria-hidden />
          </IconButton>
        }
      >
        <MenuItem onSelect={() => setDialog("rename")}>
          <Pencil className="size-3.5" aria-hidden /> Rename
        </MenuItem>
        {session.sandbox && isAllowed("fork", session.sandbox.status) && (
          <MenuItem disabled={fork.isPending} onSelect={forkSession}>
            <GitFork className="size-3.5" aria-hidden /> Fork
          </MenuItem>
        )}
        {session.projectId && session.sandbox && isAllowed("fork", session.sandbox.status) && (
          <MenuItem onSelect={() => setDialog("task")}>
            <ListPlus className="size-3.5" aria-hidden /> New task from here
          </MenuItem>
        )}
        {!session.archivedAt && (
          <MenuItem disabled={archive.isPending} onSelect={() => archive.mutate(session.id)}>
            <Archive className="size-3.5" aria-hidden /> Archive
          </MenuItem>
        )}
        <MenuLine />
        <MenuItem danger onSelect={() => setDialog("delete")}>
          <Trash2 className="size-3.5" aria-hidden /> Delete
        </MenuItem>
      </Menu>
      <NewTaskDialog
        key={session.id}
        open={dialog === "task"}
        onOpenChange={(open) => !open && close()}
        source={session}
      />
      {dialog === "rename" && <RenameDialog session={session} onClose={close} />}
      <Confirm
        open={dialog === "delete"}
        onOpenChange={(open) => !open && close()}
        title="Delete this session?"
        action="Delete"
        onConfirm={async () => {
          await remove.mutateAsync(session.id);
          onDeleted?.();
        }}
      >
        “{session.title}” is deleted with its sandbox, messages and checkpoints. Pushed commits stay on the remote.
      </Confirm>
    </>
  );
}

function RenameDialog({ session, onClose }: { session: Session; onClose: () => void }) {
  const [title, setTitle] = useState(session.title);
  const { rename } = useSessionActions();
  const save = () => {
    if (title.trim() && !rename.isPending)
      rename.mutate({ id: session.id, title: title.trim() }, { onSuccess: onClose });
  };
  return (
    <Dialog
      open
      onOpenChange={(open) => !open && onClose()}
      title="Rename session"
      footer={
        <>
          <Button onClick={onClose}>Cancel</Button>
          <Button look="primary" busy={rename.isPending} disabled={!title.trim()} onClick={save}>
            Rename
          </Button>
        </>
      }
    >
      <form
        onSubmit={(event) => {
          event.preventDefault();
          save();
        }}
      >
        <Field label="Title">
          {(control) => (
            <Input {...control} maxLength={300} value={title} onChange={(event) => setTitle(event.target.value)} />
          )}
        </Field>
      </form>
    </Dialog>
  );
}
