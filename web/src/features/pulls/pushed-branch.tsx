/** A plain remote has no pull requests: the branch that was pushed, compared with its base. */
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { ArrowUpFromLine, GitBranch } from "lucide-react";
import { api, got } from "@/api/client";
import type { PullRequest } from "@/api/types";
import { DiffView } from "@/features/changes/diff-view";
import { Operations } from "@/features/changes/operations";
import { plural } from "@/lib/format";
import { PULLS } from "@/lib/status";
import { Button } from "@/ui/button";
import { CopyButton } from "@/ui/code";
import { Empty, Loaded } from "@/ui/states";
import { Status } from "@/ui/status";
import { Ago } from "@/ui/time";
import { toast } from "@/ui/toast";
import { Refused } from "./refused";

export function PushedBranch({ pull, sandboxId }: { pull: PullRequest; sandboxId: string }) {
  const client = useQueryClient();
  const { projectId, baseBranch, headBranch } = pull;
  const compared = useQuery({
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
      return client.invalidateQueries({ queryKey: ["pull"] });
    },
  });
  const merge = `git fetch origin && git switch ${baseBranch} && git merge --no-ff origin/${headBranch}`;
  return (
    <div className="flex min-h-0 flex-1 flex-col">
      <Refused
        title="Could not push the branch"
        error={push.error}
        projectId={projectId}
        onAgain={() => push.mutate()}
        onClose={() => push.reset()}
      />
      <Operations sandboxId={sandboxId} />
      <header className="flex flex-col gap-1 border-b px-3 py-2">
        <div className="flex flex-wrap items-center gap-2">
          <Status word={PULLS[pull.state]} />
          <h2 className="min-w-0 flex-1 basis-48 text-[15px] font-semibold [overflow-wrap:anywhere]">{pull.title}</h2>
          <Button size="sm" busy={push.isPending} onClick={() => push.mutate()}>
            {!push.isPending && <ArrowUpFromLine className="size-3.5" aria-hidden />}
            Push what is new
          </Button>
        </div>
        <p className="text-xs text-soft [overflow-wrap:anywhere]">
          <GitBranch className="mr-1.5 inline size-3.5 text-faint" aria-hidden />
          <span className="font-mono">{headBranch}</span> for <span className="font-mono">{baseBranch}</span>, pushed{" "}
          <Ago at={pull.updatedAt} />
        </p>
        <p className="flex min-w-0 items-center gap-1 text-xs text-soft">
          <span className="shrink-0">Merge it by hand:</span>
          <code className="min-w-0 truncate rounded bg-sunken px-1 font-mono text-2xs" title={merge}>
            {merge}
          </code>
          <CopyButton text={merge} label="Copy the command" />
        </p>
      </header>
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
                <Empty title="Nothing to compare">
                  {baseBranch} has all that {headBranch} has: it may be merged already.
                </Empty>
              }
            />
          </>
        )}
      </Loaded>
    </div>
  );
}
