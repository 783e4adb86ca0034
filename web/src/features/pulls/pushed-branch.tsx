/** A pushed branch on a plain remote without pull requests: compare it with its base, and merge it. */
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { GitBranch, GitMerge, RefreshCw } from "lucide-react";
import { useState } from "react";
import { api, got } from "@/api/client";
import { project as projectOf } from "@/api/queries";
import type { PullRequest } from "@/api/types";
import { DiffView } from "@/features/changes/diff-view";
import { Operations } from "@/features/changes/operations";
import { ForgeNote } from "@/features/projects/forge-note";
import { TaskDone, UnsentComments, useCancelLabel } from "@/features/tasks/consequences";
import { plural } from "@/lib/format";
import { PULLS } from "@/lib/status";
import { Button, IconButton } from "@/ui/button";
import { Confirm } from "@/ui/dialog";
import { Select } from "@/ui/field";
import { Empty, Loaded } from "@/ui/states";
import { Status } from "@/ui/status";
import { Ago } from "@/ui/time";
import { toast } from "@/ui/toast";
import { METHOD_CHOICES, METHODS, type Method } from "./forge";
import { PushButton } from "./push-button";
import { Refused } from "./refused";

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
  const client = useQueryClient();
  const { projectId, baseBranch, headBranch } = pull;
  const cancel = useCancelLabel(sessionId);
  const merged = pull.state === "merged";
  const project = useQuery(projectOf(projectId)).data;
  const [chosen, setMethod] = useState<Method>();
  const method = chosen ?? project?.settings.forge?.mergeMethod ?? "squash";
  const compared = useQuery({
    enabled: !merged, // The branch may be deleted.
    queryKey: ["pull", "compare", projectId, baseBranch, headBranch],
    queryFn: () =>
      got(
        api.GET("/api/v1/projects/{project_id}/compare", {
          params: { path: { project_id: projectId }, query: { base: baseBranch, head: headBranch } },
        }),
      ),
  });
  const push = useMutation({
    mutationFn: () =>
      got(api.POST("/api/v1/github/pull-requests", { body: { sandboxId, labels: [], reviewers: [], assignees: [] } })),
    onSuccess: () => {
      toast.success(`Pushed ${headBranch}`);
      void client.invalidateQueries({ queryKey: ["git", sandboxId] });
      return client.invalidateQueries({ queryKey: ["pull"] });
    },
  });
  const params = { path: { pull_request_id: pull.id } };
  const merge = useMutation({
    mutationFn: () =>
      got(
        api.POST("/api/v1/pull-requests/{pull_request_id}/merge", {
          params,
          body: { method, headCommit: pull.headCommit },
        }),
      ),
    onSuccess: () => {
      toast.success(`Merged into ${baseBranch}`);
      return client.invalidateQueries({ queryKey: ["pull"] });
    },
  });
  const refresh = useMutation({
    mutationFn: () => got(api.POST("/api/v1/pull-requests/{pull_request_id}/refresh", { params })),
    onSuccess: () => client.invalidateQueries({ queryKey: ["pull"] }),
  });
  const busy = push.isPending || merge.isPending || refresh.isPending;
  const tried = [
    { title: "Could not merge", what: merge },
    { title: "Could not push the branch", what: push },
    { title: "Could not refresh from the remote", what: refresh },
  ].find(({ what }) => what.error);
  return (
    <div className="flex min-h-0 flex-1 flex-col">
      <Refused
        title={tried?.title ?? ""}
        error={tried?.what.error ?? null}
        projectId={projectId}
        onAgain={() => tried?.what.mutate()}
        onRefresh={() => refresh.mutate()}
        onClose={() => tried?.what.reset()}
      />
      <Operations sandboxId={sandboxId} />
      {project && <ForgeNote project={project} className="mx-3 mt-2" />}
      <header className="flex flex-col gap-1 border-b px-3 py-2">
        <div className="flex flex-wrap items-center gap-2">
          <Status word={PULLS[pull.state]} />
          <h2 className="min-w-0 flex-1 basis-48 text-[15px] font-semibold [overflow-wrap:anywhere]">{pull.title}</h2>
          <PushButton sandboxId={sandboxId} busy={push.isPending} disabled={busy} onClick={() => push.mutate()} />
          {!merged && (
            <>
              <Select
                label="Merge method"
                className="!h-7 !w-auto text-xs"
                value={method}
                onChange={(value) => setMethod(value as Method)}
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
                onConfirm={() => merge.mutateAsync().catch(() => undefined)}
              >
                <UnsentComments sessionId={sessionId} />
                {METHODS[method]}, into <span className="font-mono text-xs">{baseBranch}</span> on the remote.
                {taskId && <TaskDone projectId={projectId} />} If the branch has new commits that are not shown here,
                nothing is merged.
              </Confirm>
              <IconButton
                size="sm"
                label="Check whether it was merged"
                busy={refresh.isPending}
                disabled={busy}
                onClick={() => refresh.mutate()}
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
        <Loaded query={compared}>
          {({ commits, diff }) => (
            <>
              {commits.length > 0 && (
                <details className="border-b px-3 py-1 text-xs">
                  <summary className="cursor-pointer py-0.5 text-soft">{plural(commits.length, "commit")}</summary>
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
