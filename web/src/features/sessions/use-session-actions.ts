import { useArchiveSession, useDeleteSession, useForkSession, useRenameSession } from "@/api/queries/sessions";
import { showError } from "@/ui/toast";

/** The actions on a session, which report their errors. */
export function useSessionActions() {
  const rename = useRenameSession({ onError: showError("Could not rename the session") });
  const fork = useForkSession({ onError: showError("Could not fork the session") });
  const archive = useArchiveSession({ onError: showError("Could not archive the session") });
  const remove = useDeleteSession({ onError: showError("Could not delete the session") });
  return { rename, fork, archive, remove };
}
