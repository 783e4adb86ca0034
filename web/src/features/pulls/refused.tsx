import { Link } from "@tanstack/react-router";
import { ApiError } from "@/api/client";
import { Refusal } from "@/features/changes/operations";
import { Button } from "@/ui/button";
import { words } from "@/ui/states";
import { helpFor } from "./forge";

/** An error of the forge, with the action that may resolve it. */
export function Refused({
  title,
  error,
  projectId,
  onAgain,
  onRefresh,
  onClose,
}: {
  title: string;
  error: unknown;
  projectId: string;
  onAgain?: (() => void) | undefined;
  onRefresh?: (() => void) | undefined;
  onClose: () => void;
}) {
  if (!error) return null;
  const help = error instanceof ApiError ? helpFor(error.code) : null;
  return (
    <Refusal title={title} text={words(error)} onClose={onClose}>
      {help === "credential" && projectId && (
        <Link to="/projects/$projectId" params={{ projectId }} className="text-xs font-medium text-accent underline">
          Open project settings
        </Link>
      )}
      {help === "again" && onAgain && (
        <Button size="sm" onClick={onAgain}>
          Retry
        </Button>
      )}
      {help === "refresh" && onRefresh && (
        <Button size="sm" onClick={onRefresh}>
          Refresh
        </Button>
      )}
    </Refusal>
  );
}
