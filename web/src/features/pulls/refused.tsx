import { Link } from "@tanstack/react-router";
import { ApiError } from "@/api/client";
import { Refusal } from "@/features/changes/operations";
import { Button } from "@/ui/button";
import { words } from "@/ui/states";
import { helpFor } from "./forge";

/** What the forge said no to, in its own words, and what can be done. */
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
          Open the project's settings
        </Link>
      )}
      {help === "again" && onAgain && (
        <Button size="sm" onClick={onAgain}>
          Try again
        </Button>
      )}
      {help === "refresh" && onRefresh && (
        <Button size="sm" onClick={onRefresh}>
          Ask how it stands
        </Button>
      )}
    </Refusal>
  );
}
