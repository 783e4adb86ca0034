import { Link } from "@tanstack/react-router";
import { CircleDollarSign } from "lucide-react";

/** A link to the setting of the project's budget. */
export function BudgetLink({ projectId }: { projectId: string }) {
  return (
    <Link
      to="/projects/$projectId"
      params={{ projectId }}
      search={{ tab: "board" }}
      className="inline-flex h-7 items-center gap-1 rounded-md border border-line-strong bg-surface px-2 text-xs font-medium hover:bg-hover"
    >
      <CircleDollarSign className="size-3.5" aria-hidden /> Raise the project's budget
    </Link>
  );
}
