import { useState } from "react";
import { useCreateFile } from "@/api/queries/files";
import { Button } from "@/ui/button";
import { Dialog } from "@/ui/dialog";
import { Field, Input } from "@/ui/field";
import { errorMessage } from "@/ui/states";
import { join } from "./paths";

interface Props {
  sandboxId: string;
  folder: string;
  open: boolean;
  onOpenChange: (open: boolean) => void;
  onCreated: (path: string) => void;
}

export function NewFileDialog({ sandboxId, folder, open, onOpenChange, onCreated }: Props) {
  const [name, setName] = useState("");
  const path = join(folder, name);
  const create = useCreateFile({
    onSuccess: (_, created) => {
      setName("");
      onOpenChange(false);
      onCreated(created.path);
    },
  });
  return (
    <Dialog
      open={open}
      onOpenChange={(next) => {
        create.reset();
        onOpenChange(next);
      }}
      title="New file"
      footer={
        <>
          <Button onClick={() => onOpenChange(false)}>Cancel</Button>
          <Button look="primary" type="submit" form="new-file" busy={create.isPending} disabled={!path}>
            Create
          </Button>
        </>
      }
    >
      <form
        id="new-file"
        onSubmit={(event) => {
          event.preventDefault();
          if (path && !create.isPending) create.mutate({ sandboxId, path });
        }}
      >
        <Field
          label="Name"
          hint={`In ${folder}. Missing folders are created, such as src for src/new.py.`}
          error={create.error ? errorMessage(create.error) : undefined}
        >
          {(control) => (
            <Input
              {...control}
              autoFocus
              spellCheck={false}
              className="font-mono"
              value={name}
              onChange={(event) => setName(event.target.value)}
            />
          )}
        </Field>
      </form>
    </Dialog>
  );
}
