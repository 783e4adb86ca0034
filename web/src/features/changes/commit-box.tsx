/** Commit or discard uncommitted changes. */
import { GitCommitHorizontal, Undo2, Wand2 } from "lucide-react";
import { type KeyboardEvent, useState } from "react";
import { hasCode } from "@/api/client";
import { useCommit, useDiscardChanges } from "@/api/queries/git";
import type { GitStatus } from "@/api/types";
import { pluralize } from "@/lib/format";
import { useStored } from "@/lib/stored";
import { Button } from "@/ui/button";
import { Confirm } from "@/ui/dialog";
import { Field, Textarea } from "@/ui/field";
import { errorMessage } from "@/ui/states";
import { showError, toast } from "@/ui/toast";

export function CommitBox({ sandboxId, status }: { sandboxId: string; status: GitStatus }) {
  const [open, setOpen] = useState(false);
  const [message, setMessage] = useStored(`commit.${sandboxId}`, "");
  const commit = useCommit({
    onSuccess: () => {
      setMessage("");
      setOpen(false);
      toast.success("Committed");
    },
  });
  const discard = useDiscardChanges({
    onSuccess: (done) => {
      toast.success(`Discarded ${pluralize(Number(done.detail.count ?? 0), "file")}`, {
        description: "A checkpoint was saved first. See History.",
      });
    },
    onError: showError("Could not discard the changes"),
  });
  const suggestion = hasCode(commit.error, "commit_message") ? commit.error.problem.suggestion : undefined;
  const conflicted = status.entries.filter((entry) => entry.worktree === "conflicted").length;
  const submit = () => message.trim() && !commit.isPending && commit.mutate({ sandboxId, message });
  const key = (event: KeyboardEvent) => {
    if (event.key === "Enter" && (event.metaKey || event.ctrlKey)) submit();
  };
  if (status.clean) return null;
  return (
    <section aria-label="Uncommitted changes" className="border-b bg-page px-3 py-1.5">
      <div className="flex flex-wrap items-center gap-2">
        <p className="mr-auto text-[13px]">
          <span className="font-medium tabular-nums">
            {status.truncated ? "More than " : ""}
            {pluralize(status.entries.length, "file")}
          </span>{" "}
          <span className="text-soft">not committed{conflicted > 0 && `, ${conflicted} in conflict`}</span>
        </p>
        <Confirm
          trigger={
            <Button size="sm" look="ghost" busy={discard.isPending}>
              <Undo2 className="size-3.5" aria-hidden />
              Discard
            </Button>
          }
          title="Discard all uncommitted changes?"
          action="Discard"
          onConfirm={() => discard.mutateAsync({ sandboxId })}
        >
          {pluralize(status.entries.length, "file")} will be reset to the last commit; new files are deleted. A
          checkpoint is saved first, which you can restore.
        </Confirm>
        {!open && (
          <Button size="sm" onClick={() => setOpen(true)}>
            <GitCommitHorizontal className="size-3.5" aria-hidden />
            Commit…
          </Button>
        )}
      </div>
      {open && (
        <div className="mt-1.5 flex flex-col gap-2 pb-1">
          <Field
            label="Commit message"
            error={commit.error ? errorMessage(commit.error) : undefined}
            hint="Summarize the change in the first line, such as “fix: restore the login”."
          >
            {(control) => (
              <Textarea
                {...control}
                rows={3}
                autoFocus
                value={message}
                onChange={(event) => setMessage(event.target.value)}
                onKeyDown={key}
                placeholder="feat: …"
              />
            )}
          </Field>
          {suggestion && (
            <div className="flex flex-wrap items-center gap-2 rounded-md border bg-surface p-2">
              <span className="min-w-0 flex-1 font-mono text-xs whitespace-pre-wrap [overflow-wrap:anywhere]">
                {suggestion}
              </span>
              <Button
                size="sm"
                busy={commit.isPending}
                onClick={() => {
                  setMessage(suggestion);
                  commit.mutate({ sandboxId, message: suggestion });
                }}
              >
                <Wand2 className="size-3.5" aria-hidden />
                Commit with this message
              </Button>
            </div>
          )}
          <div className="flex justify-end gap-2">
            <Button
              size="sm"
              onClick={() => {
                setOpen(false);
                commit.reset();
              }}
            >
              Cancel
            </Button>
            <Button size="sm" look="primary" busy={commit.isPending} disabled={!message.trim()} onClick={submit}>
              Commit {pluralize(status.entries.length, "file")}
            </Button>
          </div>
        </div>
      )}
    </section>
  );
}
