/** A commit: its message and its changes. */
import { hasCode } from "@/api/client";
import { readFileDiff, useCommitChanges, useDiff } from "@/api/queries/git";
import type { Commit } from "@/api/types";
import { DiffView } from "@/features/changes/diff-view";
import { CopyButton } from "@/ui/code";
import { Sheet } from "@/ui/dialog";
import { Empty, Loaded } from "@/ui/states";
import { Ago } from "@/ui/time";

export function CommitSheet({
  commit,
  pushed,
  sandboxId,
  projectId,
  onClose,
}: {
  commit: Commit | null;
  pushed: boolean;
  sandboxId: string;
  projectId: string;
  onClose: () => void;
}) {
  return (
    <Sheet
      wide
      open={commit !== null}
      onOpenChange={(open) => !open && onClose()}
      title={<span className="[overflow-wrap:anywhere]">{commit?.subject}</span>}
      description={
        commit && (
          <span className="flex flex-wrap items-center gap-x-2">
            {commit.author.name}
            <Ago at={commit.committedAt} />
            <span className="font-mono">{commit.id.slice(0, 10)}</span>
            <CopyButton text={commit.id} label="Copy commit ID" />
          </span>
        )
      }
    >
      {commit && (
        <div className="-mx-4 -my-3 flex h-[calc(100%+1.5rem)] flex-col">
          {commit.body.trim() && (
            <pre className="max-h-32 shrink-0 overflow-y-auto border-b px-4 py-2 font-sans text-[13px] whitespace-pre-wrap text-soft [overflow-wrap:anywhere]">
              {commit.body.trim()}
            </pre>
          )}
          <CommitChanges commit={commit} pushed={pushed} sandboxId={sandboxId} projectId={projectId} />
        </div>
      )}
    </Sheet>
  );
}

/** The changes of a commit. Before a commit is pushed, the platform can only show everything since its parent. */
function CommitChanges({
  commit,
  pushed,
  sandboxId,
  projectId,
}: {
  commit: Commit;
  pushed: boolean;
  sandboxId: string;
  projectId: string;
}) {
  const [parent] = commit.parents;
  const changes = useCommitChanges(
    { sandboxId, projectId, id: commit.id, parent: parent ?? "" },
    { enabled: pushed && !!parent && !!projectId },
  );
  const unavailable = !pushed || !projectId || hasCode(changes.error, "not_found");
  const since = useDiff(sandboxId, parent ?? "", { enabled: unavailable && !!parent });
  if (!parent) return <Empty title="First commit">There is no earlier commit to compare it with.</Empty>;
  if (!unavailable) return <Loaded query={changes}>{(found) => <DiffView diff={found.diff} />}</Loaded>;
  return (
    <>
      <p className="border-b bg-info-soft px-4 py-1 text-xs text-info">
        This commit is not pushed yet. Showing all changes since the previous commit, including later ones.
      </p>
      <Loaded query={since}>
        {(found) => <DiffView diff={found} onLoad={(file) => readFileDiff(sandboxId, parent, file)} />}
      </Loaded>
    </>
  );
}
