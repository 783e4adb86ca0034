/** A pull request on the forge: its state and actions. */
import { GitMerge, RefreshCw } from "lucide-react";
import { type ReactNode, useState } from "react";
import { useProject } from "@/api/queries/projects";
import { type PullRequestAction, useApplyPullRequestAction } from "@/api/queries/pull-requests";
import { useTask } from "@/api/queries/tasks";
import type { MergeMethod, PullRequest } from "@/api/types";
import { Operations } from "@/features/changes/operations";
import { focusComposer } from "@/features/conversation/focus";
import { appendToDraft } from "@/features/conversation/prompt-draft";
import {
  detailOf,
  METHOD_CHOICES,
  METHODS,
  mergeBar,
  quoteRemark,
  type Remark,
  type Verification,
  verificationOf,
} from "@/model/forge";
import { CHECKS, PULLS, REVIEWS } from "@/model/status-labels";
import { Badge, Dot } from "@/ui/badge";
import { Button, IconButton } from "@/ui/button";
import { Confirm } from "@/ui/dialog";
import { Select } from "@/ui/field";
import { MarkdownBudget } from "@/ui/markdown";
import { Status } from "@/ui/status";
import { Ago } from "@/ui/time";
import { toast } from "@/ui/toast";
import { TaskDoneNote, UnsentComments, useCancelLabel } from "./consequences";
import { ForgeError } from "./forge-error";
import { PushButton } from "./push-button";
import { OutgoingLink, Remarks, Runs } from "./remarks";

const FAILURES: Record<PullRequestAction, string> = {
  merge: "Could not merge",
  ready: "Could not mark as ready for review",
  close: "Could not close the pull request",
  refresh: "Could not refresh from the forge",
  update: "Could not update the pull request",
};
const SUCCESSES: Partial<Record<PullRequestAction, string>> = {
  merge: "Merged",
  ready: "Marked as ready for review",
  close: "Closed",
  update: "Pull request updated",
};

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
  const request = useApplyPullRequestAction({
    onSuccess: (_, { action }) => {
      const message = SUCCESSES[action];
      if (message) toast.success(message);
    },
  });
  const project = useProject(pull.projectId).data;
  const [chosen, setMethod] = useState<MergeMethod>();
  const method = chosen ?? project?.settings.forge?.mergeMethod ?? "squash";
  const task = useTask(taskId ?? "", { enabled: taskId !== undefined }).data;
  const cancel = useCancelLabel(sessionId);
  const verified = verificationOf(task?.attempts.find((attempt) => attempt.sessionId === sessionId));
  const { runs, remarks, labels, warnings } = detailOf(pull);
  const pending = request.isPending ? request.variables.action : null;
  const bar = mergeBar(pull);
  const open = pull.state === "open";
  const apply = (action: PullRequestAction) => request.mutate({ action, pull, sandboxId });
  const quote = (remark: Remark) => {
    appendToDraft(sessionId, quoteRemark(remark));
    toast.success("Quoted in your message", {
      description: "Complete and send it in the conversation.",
    });
    focusComposer(sessionId);
  };
  const update = (
    <PushButton
      sandboxId={sandboxId}
      busy={pending === "update"}
      disabled={!!pending}
      onClick={() => apply("update")}
    />
  );
  return (
    <div className="min-h-0 flex-1 overflow-y-auto">
      <ForgeError
        title={request.variables ? FAILURES[request.variables.action] : ""}
        error={request.error}
        projectId={pull.projectId}
        onRetry={() => request.variables && request.mutate(request.variables)}
        onRefresh={() => apply("refresh")}
        onClose={() => request.reset()}
      />
      <Operations sandboxId={sandboxId} />
      <div className="mx-auto flex max-w-3xl flex-col gap-4 px-3 py-4">
        <header className="flex flex-col gap-1.5">
          <div className="flex items-start gap-2">
            <h2 className="min-w-0 flex-1 text-[15px] font-semibold [overflow-wrap:anywhere]">
              <OutgoingLink href={pull.url}>
                <span className="min-w-0">
                  {pull.title}{" "}
                  <span className="inline-block font-normal whitespace-nowrap text-faint tabular-nums">
                    #{pull.number}
                  </span>
                </span>
              </OutgoingLink>
            </h2>
            <IconButton
              size="sm"
              label="Refresh from the forge"
              busy={pending === "refresh"}
              disabled={!!pending}
              onClick={() => apply("refresh")}
            >
              {pending !== "refresh" && <RefreshCw className="size-3.5" aria-hidden />}
            </IconButton>
          </div>
          <p className="flex flex-wrap items-center gap-1.5" aria-live="polite">
            <Status status={PULLS[pull.state]} />
            {pull.draft && open && <Badge>Draft</Badge>}
            {verified && <Badge tone={verified.ok ? "ok" : "bad"}>{verified.ok ? "Verified" : "Not verified"}</Badge>}
            {(pull.checks !== "none" || !verified) && <Status status={CHECKS[pull.checks]} />}
            <Status status={REVIEWS[pull.review]} />
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
                  busy={pending === "ready"}
                  disabled={!!pending}
                  onClick={() => apply("ready")}
                >
                  Mark as ready for review
                </Button>
              )}
              <Select
                label="Merge method"
                className="!h-7 !w-auto text-xs"
                value={method}
                onChange={(value) => setMethod(value as MergeMethod)}
                choices={METHOD_CHOICES}
              />
              <Confirm
                trigger={
                  <Button
                    size="sm"
                    look={bar ? "plain" : "primary"}
                    disabled={bar !== null || !!pending}
                    busy={pending === "merge"}
                  >
                    {pending !== "merge" && <GitMerge className="size-3.5" aria-hidden />}
                    Merge
                  </Button>
                }
                title={`Merge #${pull.number}?`}
                action="Merge"
                cancel={cancel}
                look="primary"
                onConfirm={() => shown(request.mutateAsync({ action: "merge", pull, sandboxId, method }))}
              >
                <UnsentComments sessionId={sessionId} />
                {METHODS[method]}, into <span className="font-mono text-xs">{pull.baseBranch}</span>.
                {pull.checks === "failing" && " Its checks are failing."}
                {pull.checks === "pending" && " Its checks are still running."}
                {pull.review === "changes_requested" && " A reviewer has requested changes."}
                {taskId && <TaskDoneNote projectId={pull.projectId} />} If the branch has new commits that are not shown
                here, nothing is merged.
              </Confirm>
              <span className="mr-auto" />
              {update}
              <Confirm
                trigger={
                  <Button size="sm" look="danger" disabled={!!pending} busy={pending === "close"}>
                    Close
                  </Button>
                }
                title={`Close #${pull.number} without merging?`}
                action="Close"
                onConfirm={() => shown(request.mutateAsync({ action: "close", pull, sandboxId }))}
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
        <MarkdownBudget texts={[...remarks.map((remark) => remark.text), ...runs.map((run) => run.summary ?? "")]}>
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
            note={
              open && taskId
                ? `Requested changes, and comments that mention ${project?.settings.tasks?.mention ?? "@sandyard"}, are sent to the agent if their author has write access to the repository. If not, you are asked first. Other comments are only shown here.`
                : undefined
            }
            empty="No reviews or comments yet."
          >
            {remarks.length > 0 && <Remarks remarks={remarks} onQuote={open ? quote : undefined} />}
          </Block>
        </MarkdownBudget>
      </div>
    </div>
  );
}

/** The result of the verify command, which ran in the sandbox before the push. */
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

function Block({
  title,
  note,
  empty,
  children,
}: {
  title: string;
  note?: string | undefined;
  empty: string;
  children: ReactNode;
}) {
  return (
    <section>
      <h3 className="mb-1 text-[13px] font-semibold">{title}</h3>
      {note && <p className="mb-1.5 text-xs text-soft">{note}</p>}
      <div className="rounded-lg border bg-surface">
        {children || <p className="px-3 py-3 text-[13px] text-faint">{empty}</p>}
      </div>
    </section>
  );
}
