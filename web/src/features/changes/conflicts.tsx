/** List the conflicting files and the ways to resolve the conflicts. */
import { useState } from "react";
import type { ApiError } from "@/api/client";
import type { UpdateMethod } from "@/api/types";
import { pluralize } from "@/lib/format";
import { Badge } from "@/ui/badge";
import { Button } from "@/ui/button";
import { Dialog } from "@/ui/dialog";
import { VisibleText } from "@/ui/visible-text";

const CHOICES: Record<string, { how: UpdateMethod; title: string; detail: string }> = {
  rebase: { how: "rebase", title: "Rebase", detail: "Put the branch's commits on top of the new commits." },
  merge: {
    how: "merge",
    title: "Merge instead",
    detail: "Create one merge commit instead of moving every commit. There may be fewer conflicts.",
  },
  agent: {
    how: "agent",
    title: "Let the agent resolve them",
    detail:
      "The conflicts are written into the files. Ask the agent to resolve them; the next commit completes the merge.",
  },
  give_up: {
    how: "give_up",
    title: "Keep the branch as it is",
    detail: "Nothing is merged. A merge or rebase in progress is aborted.",
  },
};

export function Conflicts({
  error,
  busy,
  onChoose,
  onClose,
}: {
  error: ApiError | null;
  busy: boolean;
  onChoose: (how: UpdateMethod) => void;
  onClose: () => void;
}) {
  const [chosen, setChosen] = useState<UpdateMethod>();
  const files = error?.problem.files ?? [];
  const choices = (error?.problem.choices ?? []).flatMap((choice) => CHOICES[choice] ?? []);
  return (
    <Dialog
      open={error !== null}
      onOpenChange={(open) => !open && onClose()}
      title={`Conflicts in ${pluralize(files.length, "file")}`}
      description="The branch and the new commits changed the same lines. No files have been changed yet."
      footer={<Button onClick={onClose}>Close</Button>}
    >
      <ul className="mb-3 max-h-56 overflow-y-auto rounded-md border">
        {files.map((file) => (
          <li key={file.path} className="flex flex-wrap items-baseline gap-x-2 border-b px-2.5 py-1.5 last:border-b-0">
            <span className="min-w-0 font-mono text-xs [overflow-wrap:anywhere]">
              <VisibleText text={file.path} />
            </span>
            <Badge tone="warn">{file.kind}</Badge>
            {file.detail && <span className="w-full text-xs text-soft [overflow-wrap:anywhere]">{file.detail}</span>}
          </li>
        ))}
      </ul>
      <h3 className="mb-1 text-[13px] font-medium">What should happen?</h3>
      <div className="flex flex-col gap-1.5">
        {choices.map(({ how, title, detail }) => (
          <div key={how} className="flex flex-wrap items-center gap-2 rounded-md border p-2.5">
            <div className="min-w-0 flex-1 basis-56">
              <p className="text-[13px] font-medium">{title}</p>
              <p className="text-xs text-soft">{detail}</p>
            </div>
            <Button
              size="sm"
              disabled={busy}
              busy={busy && chosen === how}
              onClick={() => {
                setChosen(how);
                onChoose(how);
              }}
            >
              {title}
            </Button>
          </div>
        ))}
      </div>
    </Dialog>
  );
}
