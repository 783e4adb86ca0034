/** The pull request of a session or task: none yet, a pushed branch, or one on the forge. */
import { useQuery } from "@tanstack/react-query";
import { GitPullRequest } from "lucide-react";
import { api, got } from "@/api/client";
import { isCode } from "@/features/changes/queries";
import { Empty, ErrorState, Loading } from "@/ui/states";
import { OpenPull } from "./open-pull";
import { Pull } from "./pull";
import { PushedBranch } from "./pushed-branch";

export function PullPanel({
  sessionId,
  sandboxId,
  projectId,
  taskId,
}: {
  sessionId: string;
  sandboxId: string;
  projectId: string;
  taskId?: string | undefined;
}) {
  const pull = useQuery({
    queryKey: taskId ? ["pull", "task", taskId, sessionId] : ["pull", "session", sessionId],
    // Each attempt of a task has its own session and pull request.
    queryFn: () =>
      got(api.GET("/api/v1/sessions/{session_id}/pull-request", { params: { path: { session_id: sessionId } } })),
    retry: (failures, error) => failures < 2 && !isCode(error, "not_found"),
  });
  if (pull.data) {
    return pull.data.number === null ? (
      <PushedBranch pull={pull.data} sandboxId={sandboxId} sessionId={sessionId} taskId={taskId} />
    ) : (
      <Pull pull={pull.data} sandboxId={sandboxId} sessionId={sessionId} taskId={taskId} />
    );
  }
  if (!pull.error) return <Loading />;
  if (!isCode(pull.error, "not_found")) return <ErrorState error={pull.error} retry={() => pull.refetch()} />;
  if (!projectId) {
    return (
      <Empty title="No repository" icon={<GitPullRequest className="size-6" aria-hidden />}>
        This session has no project, so it cannot open a pull request.
      </Empty>
    );
  }
  return <OpenPull sandboxId={sandboxId} projectId={projectId} />;
}
