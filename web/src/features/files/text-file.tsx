import { Save } from "lucide-react";
import { lazy, Suspense, useCallback, useRef, useState } from "react";
import { FileChangedError, useSaveFile } from "@/api/queries/files";
import type { FileEntry } from "@/api/types";
import { Button } from "@/ui/button";
import { Confirm } from "@/ui/dialog";
import { Loading } from "@/ui/states";
import { showError, toast } from "@/ui/toast";
import { deleteDraft, getDraft, storeDraft } from "./drafts";
import { nameOf } from "./paths";

const Editor = lazy(() => import("./editor"));

interface Props {
  sandboxId: string;
  path: string;
  text: string;
  entry: FileEntry;
  reload: () => Promise<unknown>;
}

/** A text file in an editor. Unsaved text is kept until it is saved or discarded, even while another file is shown. */
export function TextFile({ sandboxId, path, text, entry, reload }: Props) {
  const [draft] = useState(() => getDraft(sandboxId, path));
  const [base, setBase] = useState({ text, entry: draft?.entry ?? entry });
  const [dirty, setDirty] = useState(draft !== undefined);
  const [overwriting, setOverwriting] = useState(false);
  const readText = useRef<(() => string) | null>(null); // set by the editor: returns its text

  const handleChange = useCallback(
    (now: string) => {
      const differs = now !== base.text;
      setDirty(differs);
      if (differs) storeDraft(sandboxId, path, { text: now, entry: base.entry });
      else deleteDraft(sandboxId, path);
    },
    [sandboxId, path, base],
  );
  const makeRequest = (overwrite: boolean) => ({
    sandboxId,
    path,
    text: readText.current?.() ?? "",
    expected: overwrite ? null : base.entry,
  });
  const save = useSaveFile({
    onSuccess: (savedEntry, { text: saved }) => {
      const typed = readText.current?.() ?? saved; // more may have been typed in the meantime
      const next = { text: saved, entry: savedEntry ?? base.entry };
      setBase(next);
      setDirty(typed !== saved);
      if (typed !== saved) storeDraft(sandboxId, path, { text: typed, entry: next.entry });
      else deleteDraft(sandboxId, path);
      toast.success(`Saved ${nameOf(path)}`);
    },
    onError: (error) =>
      error instanceof FileChangedError ? setOverwriting(true) : showError(`Could not save ${nameOf(path)}`)(error),
  });
  const discard = async () => {
    deleteDraft(sandboxId, path);
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
          <Button size="sm" look="primary" busy={save.isPending} onClick={() => save.mutate(makeRequest(false))}>
            {!save.isPending && <Save className="size-3.5" aria-hidden />}
            Save
          </Button>
        </div>
      )}
      <Suspense fallback={<Loading />}>
        <Editor
          path={path}
          text={draft?.text ?? text}
          onChange={handleChange}
          onSave={() => dirty && !save.isPending && save.mutate(makeRequest(false))}
          readText={readText}
        />
      </Suspense>
      <Confirm
        open={overwriting}
        onOpenChange={setOverwriting}
        title="The file has changed in the sandbox"
        action="Overwrite"
        onConfirm={() => save.mutateAsync(makeRequest(true))}
      >
        {nameOf(path)} was changed or deleted after you opened it, possibly by the agent. Overwriting it loses that
        change. To see the change instead, cancel and choose Discard.
      </Confirm>
    </>
  );
}
