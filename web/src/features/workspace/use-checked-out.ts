import { useGitOperations } from "@/api/queries/git";
import type { Attempt, Session } from "@/api/types";
import { lacksCheckout } from "@/model/task-facts";

/** A checkout takes less time than this. Older sessions are not asked, so that their changes are shown without delay. */
const NEW_MS = 10 * 60_000;

/** Whether the repository is checked out, as far as git may be asked about it; undefined if it is not known yet. */
export function useCheckedOut(session: Session, attempt: Attempt | undefined): boolean | undefined {
  const { projectId, sandboxId, sandbox, createdAt } = session;
  const isNew = Date.now() - Date.parse(sandbox?.createdAt ?? createdAt) < NEW_MS;
  const enabled = !attempt && isNew && projectId !== null && sandboxId !== null;
  const operations = useGitOperations(sandboxId ?? "", { enabled });
  if (attempt) return !lacksCheckout(attempt);
  if (!enabled) return true;
  if (operations.isPending) return undefined;
  return !operations.data?.some(
    ({ kind, status }) =>
      (kind === "clone" || kind === "restore" || kind === "branch") && (status === "queued" || status === "running"),
  );
}
