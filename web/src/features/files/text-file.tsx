import { useMutation, useQueryClient } from "@tanstack/react-query";
import { Save } from "lucide-react";
import { lazy, Suspense, useCallback, useRef, useState } from "react";
import { Button } from "@/ui/button";
import { Confirm } from "@/ui/dialog";
import { Loading } from "@/ui/states";
import { failed, toast } from "@/ui/toast";
import { draftOf, drop, keep } from "./drafts";
import { nameOf } from "./paths";
import { type Entry, look, write } from "./queries";

const Editor = lazy(() => import("./editor"));

/** The file was changed in the sandbox after it was opened. */
class ChangedError extends Error {}

interface Props {
  sandboxId: string;
  path: string;
  text: string;
  entry: Entry;
  reload: () => Promise<unknown>;
}

/** A text file in an editor. Unsaved text is kept until it is saved or discarded, also while another file is shown. */
export function TextFile({ sandboxId, path, text, entry, reload }: Props) {
  const client = useQueryClient();
  const [draft] = useState(() => draftOf(sandboxId, path));
  const [base, setBase] = useState({ text, entry: draft?.entry ?? entry });
  const [dirty, setDirty] = useState(draft !== undefined);
  const [asking, setAsking] = useState(false);
  const current = useRef<(() => string) | null>(null);

  const changed = useCallback(
    (now: string) => {
      const differs = now !== base.text;
      setDirty(differs);
      if (differs) keep(sandboxId, path, { text: now, entry: base.entry });
      else drop(sandboxId, path);
    },
    [sandboxId, path, base],
  );
  const save = useMutation({
    mutationFn: async (force: boolean) => {
      const saved = current.current?.() ?? "";
      if (!force) {
        const now = await look(sandboxId, path);
        if (!now || now.modifiedAt !== base.entry.modifiedAt || now.size !== base.entry.size) throw new ChangedError();
      }
      await write(sandboxId, path, saved);
      return { saved, now: await look(sandboxId, path) };
    },
    onSuccess: ({ saved, now }) => {
      const typed = current.current?.() ?? saved; // more may have been typed in the meantime
      const next = { text: saved, entry: now ?? base.entry };
      setBase(next);
      setDirty(typed !== saved);
      if (typed !== saved) keep(sandboxId, path, { text: typed, entry: next.entry });
      else drop(sandboxId, path);
      void client.invalidateQueries({ queryKey: ["files", sandboxId] });
      toast.success(`Saved ${nameOf(path)}`);
    },
    onError: (error) =>
      error instanceof ChangedError ? setAsking(true) : failed(`Could not save ${nameOf(path)}`)(error),
  });
  const discard = async () => {
    drop(sandboxId, path);
    await reload();
  };

  return (
    <>
      {dirty && (
        <div className="flex shrink-0 flex-wrap items-center gap-2 border-b bg-warn-soft px-3 py-1 text-xs text-warn">
          <span className="mr-auto" role="status">
            Unsaved changes
          </span>
          <Confirm
            trigger={<Button size="sm">Discard</Button>}
            title="Discard your changes?"
            action="Discard"
            onConfirm={discard}
          >
            The file is reloaded from the sandbox.
          </Confirm>
          <Button size="sm" look="primary" busy={save.isPending} onClick={() => save.mutate(false)}>
            {!save.isPending && <Save className="size-3.5" aria-hidden />}
            Save
          </Button>
        </div>
      )}
      <Suspense fallback={<Loading />}>
        <Editor
          path={path}
          text={draft?.text ?? text}
          onChange={changed}
          onSave={() => dirty && !save.isPending && save.mutate(false)}
          current={current}
        />
      </Suspense>
      <Confirm
        open={asking}
        onOpenChange={setAsking}
        title="The file has changed in the sandbox"
        action="Overwrite"
        onConfirm={() => save.mutateAsync(true)}
      >
        {nameOf(path)} was changed or deleted after you opened it, possibly by the agent. Overwriting it loses that
        change. To see the change instead, cancel and choose Discard.
      </Confirm>
    </>
  );
}
