import { useNavigate } from "@tanstack/react-router";
import { GitMerge } from "lucide-react";
import { useProject } from "@/api/queries/projects";
import { useMergePullRequest } from "@/api/queries/pull-requests";
import type { PullSummary, Task } from "@/api/types";
import { TaskDoneNote, UnsentComments, useCancelLabel } from "@/features/pulls/consequences";
import { METHODS } from "@/model/forge";
import { leadingAttempt } from "@/model/task-facts";
import { Button } from "@/ui/button";
import { Confirm } from "@/ui/dialog";
import { errorMessage } from "@/ui/states";
import { toast } from "@/ui/toast";

/** Merge a task's work with the project's merge method. The task is then done. */
export function MergeButton({ task, pull }: { task: Task; pull: PullSummary }) {
  const navigate = useNavigate();
  const project = useProject(task.projectId).data;
  const sessionId = leadingAttempt(task)?.sessionId;
  const cancel = useCancelLabel(sessionId);
  const method = project?.settings.forge?.mergeMethod ?? "squash";
  const merge = useMergePullRequest({
    onSuccess: () => toast.success(`Merged into ${pull.baseBranch}`),
    onError: (error) =>
      toast.error("Could not merge", {
        description: errorMessage(error),
        action: {
          label: "Open",
          onClick: () => navigate({ to: "/tasks/$taskId", params: { taskId: task.id }, search: { tab: "pull" } }),
        },
      }),
  });
  return (
    <Confirm
      trigger={
        <Button size="sm" look="primary" busy={merge.isPending}>
          {!merge.isPending && <GitMerge className="size-3.5" aria-hidden />} Merge
        </Button>
      }
      title={`Merge ${pull.number ? `#${pull.number}` : pull.headBranch}?`}
      action="Merge"
      cancel={cancel}
      look="primary"
      onConfirm={() => merge.mutateAsync({ id: pull.id, method, taskId: task.id })}
    >
      <UnsentComments sessionId={sessionId} />
      {METHODS[method]}, into <span className="font-mono text-xs">{pull.baseBranch}</span>.
      {pull.checks === "failing" && " Its checks are failing."}
      {pull.checks === "pending" && " Its checks are still running."}
      {pull.review === "changes_requested" && " A reviewer has requested changes."}
      <TaskDoneNote projectId={task.projectId} /> If the branch has new commits that are not shown here, nothing is
      merged.
    </Confirm>
  );
}
