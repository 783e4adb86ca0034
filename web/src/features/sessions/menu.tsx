import { Archive, Ellipsis, Pencil, Trash2 } from "lucide-react";
import { useState } from "react";
import type { Session } from "@/api/types";
import { Button, IconButton } from "@/ui/button";
import { Confirm, Dialog } from "@/ui/dialog";
import { Field, Input } from "@/ui/field";
import { Menu, MenuItem, MenuLine } from "@/ui/menu";
import { useSessionVerbs } from "./use-session";

/** Actions for a session: rename, archive, delete. `onDeleted` is called after deletion. */
export function SessionMenu({ session, onDeleted }: { session: Session; onDeleted?: () => void }) {
  const [asking, ask] = useState<"rename" | "delete" | null>(null);
  const { archive, remove } = useSessionVerbs(session);
  const close = () => ask(null);
  return (
    <>
      <Menu
        trigger={
          <IconButton label={`Actions for ${session.title}`} size="sm">
            <Ellipsis className="size-4" aria-hidden />
          </IconButton>
        }
      >
        <MenuItem onSelect={() => ask("rename")}>
          <Pencil className="size-3.5" aria-hidden /> Rename
        </MenuItem>
        {!session.archivedAt && (
          <MenuItem disabled={archive.isPending} onSelect={() => archive.mutate()}>
            <Archive className="size-3.5" aria-hidden /> Archive
          </MenuItem>
        )}
        <MenuLine />
        <MenuItem danger onSelect={() => ask("delete")}>
          <Trash2 className="size-3.5" aria-hidden /> Delete
        </MenuItem>
      </Menu>
      {asking === "rename" && <Rename session={session} onClose={close} />}
      <Confirm
        open={asking === "delete"}
        onOpenChange={(open) => !open && close()}
        title="Delete this session?"
        action="Delete"
        onConfirm={async () => {
          await remove.mutateAsync();
          onDeleted?.();
        }}
      >
        “{session.title}” is deleted with its sandbox, messages and checkpoints. Pushed commits stay on the remote.
      </Confirm>
    </>
  );
}

function Rename({ session, onClose }: { session: Session; onClose: () => void }) {
  const [title, setTitle] = useState(session.title);
  const { rename } = useSessionVerbs(session);
  const save = () => {
    if (title.trim() && !rename.isPending) rename.mutate(title.trim(), { onSuccess: onClose });
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
          {(wear) => (
            <Input {...wear} maxLength={300} value={title} onChange={(event) => setTitle(event.target.value)} />
          )}
        </Field>
      </form>
    </Dialog>
  );
}
