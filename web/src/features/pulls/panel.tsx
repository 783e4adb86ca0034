/** The pull request of a session or task: none yet, a pushed branch, or one on the forge. */
import { GitPullRequest } from "lucide-react";
import { hasCode } from "@/api/client";
import { usePullRequest } from "@/api/queries/pull-requests";
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
  const pull = usePullRequest(sessionId, taskId);
  if (pull.data) {
    return pull.data.number === null ? (
      <PushedBranch pull={pull.data} sandboxId={sandboxId} sessionId={sessionId} taskId={taskId} />
    ) : (
      <Pull pull={pull.data} sandboxId={sandboxId} sessionId={sessionId} taskId={taskId} />
    );
  }
  if (!pull.error) return <Loading />;
  if (!hasCode(pull.error, "not_found")) return <ErrorState error={pull.error} retry={() => pull.refetch()} />;
  if (!projectId) {
    return (
      <Empty title="No repository" icon={<GitPullRequest className="size-6" aria-hidden />}>
        This session has no project, so it cannot open a pull request.
      </Empty>
    );
  }
  return <OpenPull sandboxId={sandboxId} projectId={projectId} />;
}
