import { Link } from "@tanstack/react-router";
import { ApiError } from "@/api/client";
import { ErrorBanner } from "@/features/changes/operations";
import { helpFor } from "@/model/forge";
import { Button } from "@/ui/button";
import { CopyButton } from "@/ui/code";
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
  const command = commandOf(error);
  return (
    <ErrorBanner title={title} text={errorMessage(error)} onClose={onClose}>
      {command && <CopyButton text={command} label="Copy the command" />}
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

/** Return the command that a user can run on the server instead, if the error of the platform has one. */
export function commandOf(error: unknown): string | undefined {
  const command = error instanceof ApiError ? (error.problem as { command?: unknown }).command : undefined;
  return typeof command === "string" ? command : undefined;
}
