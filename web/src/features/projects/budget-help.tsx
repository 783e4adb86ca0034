import { Link } from "@tanstack/react-router";
import { CircleDollarSign } from "lucide-react";
import { useIsAdmin } from "@/api/queries/account";
import { ProviderSettingsLink } from "@/features/models/provider-help";
import { spentLimitOf } from "@/model/budgets";

const LOOK =
  "inline-flex h-7 items-center gap-1 rounded-md border border-line-strong bg-surface px-2 text-xs font-medium hover:bg-hover";

/** What a user can do about a limit of a project or a user that is used up. Renders nothing for the budget of a task. */
export function BudgetHelp({ sentence, projectId }: { sentence: string; projectId: string | undefined }) {
  const limit = spentLimitOf(sentence);
  if (limit === "price") return <ProviderSettingsLink projectId={projectId} />;
  if (limit === "user") return <UserLimitHelp />;
  if (limit !== "project" || !projectId) return null;
  return (
    <Link to="/projects/$projectId" params={{ projectId }} search={{ tab: "board" }} className={LOOK}>
      <CircleDollarSign className="size-3.5" aria-hidden /> Raise the project's budget
    </Link>
  );
}

function UserLimitHelp() {
  const isAdmin = useIsAdmin();
  if (!isAdmin) return <span className="text-xs text-soft">Ask an administrator to raise the limit.</span>;
  return (
    <Link to="/settings" search={{ tab: "people" }} className={LOOK}>
      <CircleDollarSign className="size-3.5" aria-hidden /> Change the user's limits
    </Link>
  );
}
