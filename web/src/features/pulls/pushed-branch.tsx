/** A pushed branch on a plain remote without pull requests: compare it with its base, and merge it. */
import { GitBranch, GitMerge, RefreshCw } from "lucide-react";
import { useState } from "react";
import { useComparison } from "@/api/queries/git";
import { useProject } from "@/api/queries/projects";
import {
  NO_DETAILS,
  useMergePullRequest,
  useOpenPullRequest,
  useRefreshPullRequest,
} from "@/api/queries/pull-requests";
import type { MergeMethod, PullRequest } from "@/api/types";
import { DiffView } from "@/features/changes/diff-view";
import { Operations } from "@/features/changes/operations";
import { ForgeNote } from "@/features/projects/forge-note";
import { pluralize } from "@/lib/format";
import { METHOD_CHOICES, METHODS } from "@/model/forge";
import { PULLS } from "@/model/status-labels";
import { Button, IconButton } from "@/ui/button";
import { Confirm } from "@/ui/dialog";
import { Select } from "@/ui/field";
import { Empty, Loaded } from "@/ui/states";
import { Status } from "@/ui/status";
import { Ago } from "@/ui/time";
import { toast } from "@/ui/toast";
import { TaskDoneNote, UnsentComments, useCancelLabel } from "./consequences";
import { ForgeError } from "./forge-error";
import { PushButton } from "./push-button";

export function PushedBranch({
  pull,
  sandboxId,
  sessionId,
  taskId,
}: {
  pull: PullRequest;
  sandboxId: string;
  sessionId: string;
  taskId?: string | undefined;
}) {
  const { projectId, baseBranch, headBranch } = pull;
  const cancel = useCancelLabel(sessionId);
  const merged = pull.state === "merged";
  const project = useProject(projectId).data;
  const [chosen, setMethod] = useState<MergeMethod>();
  const method = chosen ?? project?.settings.forge?.mergeMethod ?? "squash";
  const comparison = useComparison(projectId, baseBranch, headBranch, { enabled: !merged }); // A merged branch may be deleted.
  const push = useOpenPullRequest({ onSuccess: () => toast.success(`Pushed ${headBranch}`) });
  const merge = useMergePullRequest({ onSuccess: () => toast.success(`Merged into ${baseBranch}`) });
  const refresh = useRefreshPullRequest();
  const mergeRequest = { id: pull.id, method, headCommit: pull.headCommit };
  const sendPush = () => push.mutate({ sandboxId, ...NO_DETAILS });
  const sendRefresh = () => refresh.mutate(pull.id);
  const busy = push.isPending || merge.isPending || refresh.isPending;
  const failure = [
    { title: "Could not merge", mutation: merge, retry: () => merge.mutate(mergeRequest) },
    { title: "Could not push the branch", mutation: push, retry: sendPush },
    { title: "Could not refresh from the remote", mutation: refresh, retry: sendRefresh },
  ].find(({ mutation }) => mutation.error);
  return (
    <div className="flex min-h-0 flex-1 flex-col">
      <ForgeError
        title={failure?.title ?? ""}
        error={failure?.mutation.error ?? null}
        projectId={projectId}
        onRetry={() => failure?.retry()}
        onRefresh={() => sendRefresh()}
        onClose={() => failure?.mutation.reset()}
      />
      <Operations sandboxId={sandboxId} />
      {project && <ForgeNote project={project} className="mx-3 mt-2" />}
      <header className="flex flex-col gap-1 border-b px-3 py-2">
        <div className="flex flex-wrap items-center gap-2">
          <Status status={PULLS[pull.state]} />
          <h2 className="min-w-0 flex-1 basis-48 text-[15px] font-semibold [overflow-wrap:anywhere]">{pull.title}</h2>
          <PushButton sandboxId={sandboxId} busy={push.isPending} disabled={busy} onClick={() => sendPush()} />
          {!merged && (
            <>
              <Select
                label="Merge method"
                className="!h-7 !w-auto text-xs"
                value={method}
                onChange={(value) => setMethod(value as MergeMethod)}
                choices={METHOD_CHOICES}
              />
              <Confirm
                trigger={
                  <Button size="sm" look="primary" busy={merge.isPending} disabled={busy}>
                    {!merge.isPending && <GitMerge className="size-3.5" aria-hidden />}
                    Merge
                  </Button>
                }
                title={`Merge ${headBranch}?`}
                action="Merge"
                cancel={cancel}
                look="primary"
                // Errors are shown above, where the dialog would hide them.
                onConfirm={() => merge.mutateAsync(mergeRequest).catch(() => undefined)}
              >
                <UnsentComments sessionId={sessionId} />
                {METHODS[method]}, into <span className="font-mono text-xs">{baseBranch}</span> on the remote.
                {taskId && <TaskDoneNote projectId={projectId} />} If the branch has new commits that are not shown
                here, nothing is merged.
              </Confirm>
              <IconButton
                size="sm"
                label="Check whether it was merged"
                busy={refresh.isPending}
                disabled={busy}
                onClick={() => sendRefresh()}
              >
                {!refresh.isPending && <RefreshCw className="size-3.5" aria-hidden />}
              </IconButton>
            </>
          )}
        </div>
        <p className="text-xs text-soft [overflow-wrap:anywhere]">
          <GitBranch className="mr-1.5 inline size-3.5 text-faint" aria-hidden />
          <span className="font-mono">{headBranch}</span> into <span className="font-mono">{baseBranch}</span>,{" "}
          {pull.mergedAt ? (
            <>
              merged <Ago at={pull.mergedAt} />
            </>
          ) : (
            <>
              pushed <Ago at={pull.updatedAt} />
            </>
          )}
          {pull.branchDeletedAt && ", the branch was deleted"}
        </p>
      </header>
      {merged && (
        <Empty title="Merged">{baseBranch} contains all changes. New commits can be pushed and merged again.</Empty>
      )}
      {!merged && (
        <Loaded query={comparison}>
          {({ commits, diff }) => (
            <>
              {commits.length > 0 && (
                <details className="border-b px-3 py-1 text-xs">
                  <summary className="cursor-pointer py-0.5 text-soft">{pluralize(commits.length, "commit")}</summary>
                  <ul className="max-h-48 overflow-y-auto pb-1">
                    {commits.map((commit) => (
                      <li key={commit.id} className="flex gap-2 py-0.5">
                        <span className="font-mono text-faint">{commit.id.slice(0, 8)}</span>
                        <span className="min-w-0 [overflow-wrap:anywhere]">{commit.subject}</span>
                      </li>
                    ))}
                  </ul>
                </details>
              )}
              <DiffView
                diff={diff}
                viewedAs={pull.id}
                empty={
                  <Empty title="No differences">
                    {baseBranch} already contains all changes of {headBranch}. It may have been merged.
                  </Empty>
                }
              />
            </>
          )}
        </Loaded>
      )}
    </div>
  );
}
