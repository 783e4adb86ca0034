import { GitMerge } from "lucide-react";
import { useState } from "react";
import { ApiError } from "@/api/client";
import { useProject } from "@/api/queries/projects";
import { useMergePullRequest, useRefreshPullRequest } from "@/api/queries/pull-requests";
import type { PullSummary, Task } from "@/api/types";
import { TaskDoneNote, UnsentComments, useCancelLabel } from "@/features/pulls/consequences";
import { commandOf } from "@/features/pulls/forge-error";
import { helpFor, METHODS } from "@/model/forge";
import { leadingAttempt } from "@/model/task-facts";
import { Button } from "@/ui/button";
import { Code } from "@/ui/code";
import { Confirm } from "@/ui/dialog";
import { errorMessage } from "@/ui/states";
import { showError, toast } from "@/ui/toast";

/** Merge a task's work with the project's merge method. The task is then done. */
export function MergeButton({ task, pull }: { task: Task; pull: PullSummary }) {
  const [open, setOpen] = useState(false);
  const project = useProject(task.projectId).data;
  const sessionId = leadingAttempt(task)?.sessionId ?? undefined;
  const cancel = useCancelLabel(sessionId);
  const method = project?.settings.forge?.mergeMethod ?? "squash";
  const merge = useMergePullRequest({
    onSuccess: () => toast.success(`Merged into ${pull.baseBranch}`),
  });
  const show = (shown: boolean) => {
    if (!shown) merge.reset();
    setOpen(shown);
  };
  return (
    <Confirm
      open={open}
      onOpenChange={show}
      trigger={
        <Button size="sm" look="primary" busy={merge.isPending}>
          {!merge.isPending && <GitMerge className="size-3.5" aria-hidden />} Merge
        </Button>
      }
      title={`Merge ${pull.number ? `#${pull.number}` : pull.headBranch}?`}
      action={merge.error ? "Try again" : "Merge"}
      cancel={cancel}
      look="primary"
      onConfirm={() => merge.mutateAsync({ id: pull.id, method, taskId: task.id })}
    >
      <UnsentComments sessionId={sessionId} />
      <MergeError error={merge.error} pull={pull} onMerged={() => show(false)} />
      {METHODS[method]}, into <span className="font-mono text-xs">{pull.baseBranch}</span>.
      {pull.checks === "failing" && " Its checks are failing."}
      {pull.checks === "pending" && " Its checks are still running."}
      {pull.review === "changes_requested" && " A reviewer has requested changes."}
      <TaskDoneNote projectId={task.projectId} /> If the branch has new commits that are not shown here, nothing is
      merged.
    </Confirm>
  );
}

/** Why the merge failed, and what helps. A branch that is checked out on the server is merged there, with the command that is shown. */
export function MergeError({ error, pull, onMerged }: { error: unknown; pull: PullSummary; onMerged: () => void }) {
  const refresh = useRefreshPullRequest({
    onSuccess: ({ state }) => {
      if (state === "merged") onMerged();
      else toast.info(`${pull.headBranch} is not merged into ${pull.baseBranch} yet`);
    },
    onError: showError("Could not check the branch"),
  });
  if (!error) return null;
  const command = commandOf(error);
  return (
    <div role="alert" className="mb-2 rounded-md bg-bad-soft px-2.5 py-1.5 text-text">
      <p className="[overflow-wrap:anywhere]">
        {command ? errorMessage(error).replace(`: ${command}`, ":") : errorMessage(error)}
      </p>
      {command && <Code text={command} language="bash" />}
      {error instanceof ApiError && helpFor(error.code) === "refresh" && (
        <Button size="sm" className="my-1" busy={refresh.isPending} onClick={() => refresh.mutate(pull.id)}>
          Check whether it was merged
        </Button>
      )}
    </div>
  );
}
