import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { GitMerge } from "lucide-react";
import { api, got } from "@/api/client";
import { project as projectOf } from "@/api/queries";
import type { PullSummary, Task } from "@/api/types";
import { METHODS } from "@/features/pulls/forge";
import { Button } from "@/ui/button";
import { Confirm } from "@/ui/dialog";
import { words } from "@/ui/states";
import { toast } from "@/ui/toast";
import { leading } from "./card-facts";
import { TaskDone, UnsentComments, useCancelLabel } from "./consequences";

/** Merge a task's work with the project's merge method. The task is then done. */
export function MergeButton({ task, pull }: { task: Task; pull: PullSummary }) {
  const client = useQueryClient();
  const navigate = useNavigate();
  const project = useQuery(projectOf(task.projectId)).data;
  const sessionId = leading(task)?.sessionId;
  const cancel = useCancelLabel(sessionId);
  const method = project?.settings.forge?.mergeMethod ?? "squash";
  const merge = useMutation({
    mutationFn: () =>
      got(
        api.POST("/api/v1/pull-requests/{pull_request_id}/merge", {
          params: { path: { pull_request_id: pull.id } },
          body: { method },
        }),
      ),
    onSuccess: () => {
      toast.success(`Merged into ${pull.baseBranch}`);
      void client.invalidateQueries({ queryKey: ["pull"] });
      return client.invalidateQueries({ queryKey: ["task", task.id] });
    },
    onError: (error) =>
      toast.error("Could not merge", {
        description: words(error),
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
      onConfirm={() => merge.mutateAsync()}
    >
      <UnsentComments sessionId={sessionId} />
      {METHODS[method]}, into <span className="font-mono text-xs">{pull.baseBranch}</span>.
      {pull.checks === "failing" && " Its checks are failing."}
      {pull.checks === "pending" && " Its checks are still running."}
      {pull.review === "changes_requested" && " A reviewer has requested changes."}
      <TaskDone projectId={task.projectId} /> If the branch has new commits that are not shown here, nothing is merged.
    </Confirm>
  );
}
