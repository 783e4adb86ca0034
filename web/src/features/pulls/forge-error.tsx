import { Link } from "@tanstack/react-router";
import { ApiError } from "@/api/client";
import { ErrorBanner } from "@/features/changes/operations";
import { helpFor } from "@/model/forge";
import { Button } from "@/ui/button";
import { errorMessage } from "@/ui/states";

/** An error of the forge, with the action that may resolve it. */
export function ForgeError({
  title,
  error,
  projectId,
  onRetry,
  onRefresh,
  onClose,
}: {
  title: string;
  error: unknown;
  projectId: string;
  onRetry?: (() => void) | undefined;
  onRefresh?: (() => void) | undefined;
  onClose: () => void;
}) {
  if (!error) return null;
  const help = error instanceof ApiError ? helpFor(error.code) : null;
  return (
    <ErrorBanner title={title} text={errorMessage(error)} onClose={onClose}>
      {help === "credential" && projectId && (
        <Link to="/projects/$projectId" params={{ projectId }} className="text-xs font-medium text-accent underline">
          Open project settings
        </Link>
      )}
      {help === "again" && onRetry && (
        <Button size="sm" onClick={onRetry}>
          Retry
        </Button>
      )}
      {help === "refresh" && onRefresh && (
        <Button size="sm" onClick={onRefresh}>
          Refresh
        </Button>
      )}
    </ErrorBanner>
  );
}
