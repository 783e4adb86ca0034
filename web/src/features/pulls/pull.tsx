/** A pull request on the forge: its state and actions. */
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { GitMerge, RefreshCw } from "lucide-react";
import { type ReactNode, useState } from "react";
import { api, got } from "@/api/client";
import { project as projectOf, task as taskOf } from "@/api/queries";
import type { PullRequest } from "@/api/types";
import { Operations } from "@/features/changes/operations";
import { TaskDone, UnsentComments, useCancelLabel } from "@/features/tasks/consequences";
import { CHECKS, PULLS, REVIEWS } from "@/lib/status";
import { Badge, Dot } from "@/ui/badge";
import { Button, IconButton } from "@/ui/button";
import { Confirm } from "@/ui/dialog";
import { Select } from "@/ui/field";
import { Status } from "@/ui/status";
import { Ago } from "@/ui/time";
import { toast } from "@/ui/toast";
import { detailOf, METHOD_CHOICES, METHODS, type Method, mergeBar, type Verification, verificationOf } from "./forge";
import { PushButton } from "./push-button";
import { Refused } from "./refused";
import { Out, Remarks, Runs } from "./remarks";

type Verb = "merge" | "ready" | "close" | "refresh" | "update";

const TRIED: Record<Verb, string> = {
  merge: "Could not merge",
  ready: "Could not mark as ready for review",
  close: "Could not close the pull request",
  refresh: "Could not refresh from the forge",
  update: "Could not update the pull request",
};
const DONE: Partial<Record<Verb, string>> = {
  merge: "Merged",
  ready: "Marked as ready for review",
  close: "Closed",
  update: "Pull request updated",
};

function useVerb(pull: PullRequest, sandboxId: string) {
  const client = useQueryClient();
  const params = { path: { number: pull.number ?? 0 } };
  const body = { projectId: pull.projectId };
  return useMutation({
    mutationFn: ({ verb, method }: { verb: Verb; method?: Method }) => {
      switch (verb) {
        case "merge":
          return got(
            api.POST("/api/v1/github/pull-requests/{number}/merge", {
              params,
              body: { ...body, method, headCommit: pull.headCommit },
            }),
          );
        case "ready":
          return got(api.POST("/api/v1/github/pull-requests/{number}/ready", { params, body }));
        case "close":
          return got(api.POST("/api/v1/github/pull-requests/{number}/close", { params, body }));
        case "refresh":
          return got(api.POST("/api/v1/github/pull-requests/{number}/refresh", { params, body }));
        case "update":
          return got(
            api.POST("/api/v1/github/pull-requests", { body: { sandboxId, labels: [], reviewers: [], assignees: [] } }),
          );
      }
    },
    onSuccess: (_, { verb }) => {
      const said = DONE[verb];
      if (said) toast.success(said);
      if (verb === "update") void client.invalidateQueries({ queryKey: ["git", sandboxId] });
      return client.invalidateQueries({ queryKey: ["pull"] });
    },
  });
}

export function Pull({
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
  const verb = useVerb(pull, sandboxId);
  const project = useQuery(projectOf(pull.projectId)).data;
  const [chosen, setMethod] = useState<Method>();
  const method = chosen ?? project?.settings.forge?.mergeMethod ?? "squash";
  const task = useQuery({ ...taskOf(taskId ?? ""), enabled: taskId !== undefined }).data;
  const cancel = useCancelLabel(sessionId);
  const verified = verificationOf(task?.attempts.find((one) => one.sessionId === sessionId));
  const { runs, remarks, labels, warnings } = detailOf(pull);
  const doing = verb.isPending ? verb.variables.verb : null;
  const bar = mergeBar(pull);
  const open = pull.state === "open";
  const doIt = (what: Verb) => verb.mutate({ verb: what });
  const update = (
    <PushButton sandboxId={sandboxId} busy={doing === "update"} disabled={!!doing} onClick={() => doIt("update")} />
  );
  return (
    <div className="min-h-0 flex-1 overflow-y-auto">
      <Refused
        title={verb.variables ? TRIED[verb.variables.verb] : ""}
        error={verb.error}
        projectId={pull.projectId}
        onAgain={() => verb.variables && verb.mutate(verb.variables)}
        onRefresh={() => doIt("refresh")}
        onClose={() => verb.reset()}
      />
      <Operations sandboxId={sandboxId} />
      <div className="mx-auto flex max-w-3xl flex-col gap-4 px-3 py-4">
        <header className="flex flex-col gap-1.5">
          <div className="flex items-start gap-2">
            <h2 className="min-w-0 flex-1 text-[15px] font-semibold [overflow-wrap:anywhere]">
              <Out href={pull.url}>
                <span className="min-w-0">
                  {pull.title}{" "}
                  <span className="inline-block font-normal whitespace-nowrap text-faint tabular-nums">
                    #{pull.number}
                  </span>
                </span>
              </Out>
            </h2>
            <IconButton
              size="sm"
              label="Refresh from the forge"
              busy={doing === "refresh"}
              disabled={!!doing}
              onClick={() => doIt("refresh")}
            >
              {doing !== "refresh" && <RefreshCw className="size-3.5" aria-hidden />}
            </IconButton>
          </div>
          <p className="flex flex-wrap items-center gap-1.5" aria-live="polite">
            <Status word={PULLS[pull.state]} />
            {pull.draft && open && <Badge>Draft</Badge>}
            {verified && <Badge tone={verified.ok ? "ok" : "bad"}>{verified.ok ? "Verified" : "Not verified"}</Badge>}
            {(pull.checks !== "none" || !verified) && <Status word={CHECKS[pull.checks]} />}
            <Status word={REVIEWS[pull.review]} />
            {open && pull.mergeable === false && <Badge tone="bad">Conflicts</Badge>}
            {open && pull.mergeable === true && <Badge tone="ok">Can be merged</Badge>}
            {labels.map((label) => (
              <Badge key={label}>{label}</Badge>
            ))}
          </p>
          <p className="text-xs text-soft [overflow-wrap:anywhere]">
            <span className="font-mono">{pull.headBranch}</span> into{" "}
            <span className="font-mono">{pull.baseBranch}</span>
            {pull.headCommit && <span className="font-mono text-faint"> {pull.headCommit.slice(0, 8)}</span>}
            {pull.mergedAt ? (
              <>
                , merged <Ago at={pull.mergedAt} />
              </>
            ) : (
              pull.closedAt && (
                <>
                  , closed <Ago at={pull.closedAt} />
                </>
              )
            )}
            {pull.branchDeletedAt && ", the branch was deleted"}
            {pull.lookedAt && (
              <span className="text-faint">
                {" "}
                · updated <Ago at={pull.lookedAt} />
              </span>
            )}
          </p>
          {warnings.map((warning) => (
            <p key={warning} className="rounded-md bg-warn-soft px-2.5 py-1 text-xs text-warn">
              {warning}
            </p>
          ))}
        </header>
        {open && (
          <section aria-label="Actions" className="flex flex-col gap-2 rounded-lg border bg-surface p-3">
            <div className="flex flex-wrap items-center gap-2">
              {pull.draft && (
                <Button
                  look="primary"
                  size="sm"
                  busy={doing === "ready"}
                  disabled={!!doing}
                  onClick={() => doIt("ready")}
                >
                  Mark as ready for review
                </Button>
              )}
              <Select
                label="Merge method"
                className="!h-7 !w-auto text-xs"
                value={method}
                onChange={(value) => setMethod(value as Method)}
                choices={METHOD_CHOICES}
              />
              <Confirm
                trigger={
                  <Button
                    size="sm"
                    look={bar ? "plain" : "primary"}
                    disabled={bar !== null || !!doing}
                    busy={doing === "merge"}
                  >
                    {doing !== "merge" && <GitMerge className="size-3.5" aria-hidden />}
                    Merge
                  </Button>
                }
                title={`Merge #${pull.number}?`}
                action="Merge"
                cancel={cancel}
                look="primary"
                onConfirm={() => shown(verb.mutateAsync({ verb: "merge", method }))}
              >
                <UnsentComments sessionId={sessionId} />
                {METHODS[method]}, into <span className="font-mono text-xs">{pull.baseBranch}</span>.
                {pull.checks === "failing" && " Its checks are failing."}
                {pull.checks === "pending" && " Its checks are still running."}
                {pull.review === "changes_requested" && " A reviewer has requested changes."}
                {taskId && <TaskDone projectId={pull.projectId} />} If the branch has new commits that are not shown
                here, nothing is merged.
              </Confirm>
              <span className="mr-auto" />
              {update}
              <Confirm
                trigger={
                  <Button size="sm" look="danger" disabled={!!doing} busy={doing === "close"}>
                    Close
                  </Button>
                }
                title={`Close #${pull.number} without merging?`}
                action="Close"
                onConfirm={() => shown(verb.mutateAsync({ verb: "close" }))}
              >
                The branch is kept on the forge.
              </Confirm>
            </div>
            {bar && <p className="text-xs text-soft">{bar}</p>}
          </section>
        )}
        {(pull.state === "closed" || pull.state === "merged") && (
          <div className="flex flex-wrap items-center gap-2 rounded-lg border bg-surface p-3 text-[13px] text-soft">
            <span className="mr-auto">This pull request was {pull.state}. New commits go into a new pull request.</span>
            {update}
          </div>
        )}
        <Block title="Checks" empty="No checks have run.">
          {(verified || runs.length > 0) && (
            <>
              {verified && <Verified verified={verified} />}
              {runs.length > 0 ? (
                <Runs runs={runs} />
              ) : (
                <p className="border-t px-3 py-1.5 text-[13px] text-faint">The forge has not run any checks.</p>
              )}
            </>
          )}
        </Block>
        <Block
          title="Reviews and comments"
          empty="No reviews or comments yet. They are sent to the agent automatically."
        >
          {remarks.length > 0 && <Remarks remarks={remarks} />}
        </Block>
      </div>
    </div>
  );
}

/** The result of the project's check, which ran in the sandbox before the push. */
function Verified({ verified }: { verified: Verification }) {
  return (
    <p className="flex items-center gap-2 px-3 py-1.5 text-[13px]">
      <Dot tone={verified.ok ? "ok" : "bad"} />
      <span className="min-w-0 flex-1 [overflow-wrap:anywhere]">
        Verify: <code className="font-mono text-xs">{verified.command}</code>
      </span>
      <span className="text-xs text-soft">{verified.ok ? "passed" : "failed"} in the sandbox</span>
    </p>
  );
}

/** Close the dialog on errors too: the error is shown above, where the dialog would hide it. */
const shown = (asked: Promise<unknown>) => asked.catch(() => undefined);

function Block({ title, empty, children }: { title: string; empty: string; children: ReactNode }) {
  return (
    <section>
      <h3 className="mb-1 text-[13px] font-semibold">{title}</h3>
      <div className="rounded-lg border bg-surface">
        {children || <p className="px-3 py-3 text-[13px] text-faint">{empty}</p>}
      </div>
    </section>
  );
}
