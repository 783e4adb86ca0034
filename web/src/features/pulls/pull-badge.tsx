import { GitPullRequest } from "lucide-react";
import type { PullSummary } from "@/api/types";
import { sanitizeHref } from "@/lib/links";
import { CHECKS, PULLS } from "@/model/status-labels";
import { Badge } from "@/ui/badge";

/** The pull request or branch. Links to the forge only for a pull request, because not every forge has a page for a branch. */
export function PullBadge({ pull }: { pull: PullSummary }) {
  const href = sanitizeHref(pull.url || undefined);
  const name = pull.number ? `#${pull.number}` : pull.headBranch;
  const badge = (
    <Badge
      tone={PULLS[pull.state].tone}
      title={`${pull.title}: ${PULLS[pull.state].text}${pull.checks !== "none" ? `, ${CHECKS[pull.checks].text}` : ""}`}
    >
      <GitPullRequest className="size-3 shrink-0" aria-hidden />
      <span className="sr-only">{pull.number ? "Pull request" : "Branch"}</span>
      <span className="truncate">
        {name} {pull.draft ? "Draft" : PULLS[pull.state].text}
      </span>
    </Badge>
  );
  return href && pull.number ? (
    <a href={href} target="_blank" rel="noreferrer noopener" className="max-w-64">
      {badge}
    </a>
  ) : (
    <span className="max-w-64">{badge}</span>
  );
}
