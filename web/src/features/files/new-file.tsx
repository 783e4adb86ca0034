import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { Button } from "@/ui/button";
import { Dialog } from "@/ui/dialog";
import { Field, Input } from "@/ui/field";
import { words } from "@/ui/states";
import { join } from "./paths";
import { look, write } from "./queries";

interface Props {
  sandboxId: string;
  folder: string;
  open: boolean;
  onOpenChange: (open: boolean) => void;
  onMade: (path: string) => void;
}

export function NewFileDialog({ sandboxId, folder, open, onOpenChange, onMade }: Props) {
  const [name, setName] = useState("");
  const client = useQueryClient();
  const path = join(folder, name);
  const make = useMutation({
    mutationFn: async (wanted: string) => {
      const there = await look(sandboxId, wanted).catch(() => undefined); // its folder may not exist yet
      if (there) throw new Error(`${wanted} already exists.`);
      await write(sandboxId, wanted, "");
      return wanted;
    },
    onSuccess: (made) => {
      void client.invalidateQueries({ queryKey: ["files", sandboxId] });
      setName("");
      onOpenChange(false);
      onMade(made);
    },
  });
  return (
    <Dialog
      open={open}
      onOpenChange={(next) => {
        make.reset();
        onOpenChange(next);
      }}
      title="New file"
      footer={
        <>
          <Button onClick={() => onOpenChange(false)}>Cancel</Button>
          <Button look="primary" type="submit" form="new-file" busy={make.isPending} disabled={!path}>
            Create
          </Button>
        </>
      }
    >
      <form
        id="new-file"
        onSubmit={(event) => {
          event.preventDefault();
          if (path && !make.isPending) make.mutate(path);
        }}
      >
        <Field
          label="Name"
          hint={`In ${folder}. Missing folders are created, as in src/new.py.`}
          error={make.error ? words(make.error) : undefined}
        >
          {(wear) => (
            <Input
              {...wear}
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
