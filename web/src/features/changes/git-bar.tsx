/** The branch with its update and push actions. */
import {
  ArrowUpFromLine,
  ChevronDown,
  GitBranch,
  GitMerge,
  GitPullRequestArrow,
  RefreshCw,
  RotateCcw,
} from "lucide-react";
import { useState } from "react";
import { type ApiError, hasCode } from "@/api/client";
import { isAhead, usePush, useUpdateBranch } from "@/api/queries/git";
import type { Checkout, GitOperation, GitStatus, UpdateMethod } from "@/api/types";
import { appendToDraft } from "@/features/conversation/prompt-draft";
import { pluralize } from "@/lib/format";
import { Badge } from "@/ui/badge";
import { Button, IconButton } from "@/ui/button";
import { CopyButton } from "@/ui/code";
import { Menu, MenuItem, MenuTitle } from "@/ui/menu";
import { errorMessage } from "@/ui/states";
import { toast } from "@/ui/toast";
import { Conflicts } from "./conflicts";
import { ErrorBanner } from "./operations";

const GONE = "The sandbox is gone. Start a new sandbox first.";

export function GitBar({
  sandboxId,
  sessionId,
  checkout,
  status,
  gone,
  refreshing,
  onRefresh,
}: {
  sandboxId: string;
  sessionId: string;
  checkout: Checkout;
  status: GitStatus | undefined;
  /** The sandbox was deleted or has failed, so that nothing can be updated or pushed. */
  gone: boolean;
  refreshing: boolean;
  onRefresh: () => void;
}) {
  const [conflict, setConflict] = useState<ApiError | null>(null);
  const push = usePush({ onSuccess: reportPush });
  const update = useUpdateBranch({
    onSuccess: (done, { how }) => {
      setConflict(null);
      if (how === "agent" && conflictsOf(done).length) {
        appendToDraft(
          sessionId,
          `Please resolve the conflicts in ${conflictsOf(done).join(", ")}, and commit the merge.`,
        );
        toast.success("Conflicts written into the files", {
          description: "A message for the agent was added to your draft in the conversation.",
        });
      } else reportUpdate(done, how);
    },
    onError: (error) => hasCode(error, "conflicts") && setConflict(error),
  });
  const busy = push.isPending || update.isPending;
  const error = push.error ?? (hasCode(update.error, "conflicts") ? null : update.error);
  const close = () => {
    push.reset();
    update.reset();
  };
  const ahead = isAhead(checkout, status);
  const startUpdate = (how: UpdateMethod, source: "base" | "branch" = "base") => {
    close();
    update.mutate({ sandboxId, how, source });
  };
  return (
    <>
      <div className="flex flex-wrap items-center gap-x-2 gap-y-1 border-b px-3 py-1.5">
        <p className="flex min-w-64 flex-1 items-center gap-1.5 text-xs">
          <GitBranch className="size-3.5 shrink-0 text-faint" aria-hidden />
          <span className="min-w-0 truncate font-mono" title={checkout.branch}>
            {status?.branch ?? checkout.branch}
          </span>
          <CopyButton text={checkout.branch} label="Copy branch name" />
          <span className="shrink-0 text-faint max-sm:hidden">from {checkout.baseBranch}</span>
          {!ahead && checkout.pushed !== null && <Badge tone="ok">pushed</Badge>}
        </p>
        <div className="ml-auto flex items-center gap-2">
          <IconButton size="sm" label="Refresh" busy={refreshing} onClick={onRefresh}>
            {!refreshing && <RefreshCw className="size-3.5" aria-hidden />}
          </IconButton>
          <Menu
            trigger={
              <Button size="sm" busy={update.isPending} disabled={busy || gone} title={gone ? GONE : undefined}>
                Update
                <ChevronDown className="size-3.5" aria-hidden />
              </Button>
            }
          >
            <MenuTitle>Update from {checkout.baseBranch}</MenuTitle>
            <MenuItem onSelect={() => startUpdate("check")}>
              <RefreshCw className="size-3.5" aria-hidden /> Check for new commits
            </MenuItem>
            {checkout.pushed === null && (
              <MenuItem onSelect={() => startUpdate("rebase")}>
                <GitPullRequestArrow className="size-3.5" aria-hidden /> Rebase
              </MenuItem>
            )}
            <MenuItem onSelect={() => startUpdate("merge")}>
              <GitMerge className="size-3.5" aria-hidden /> Merge
            </MenuItem>
            {checkout.pushed !== null && (
              <MenuItem onSelect={() => startUpdate("merge", "branch")}>
                <GitMerge className="size-3.5" aria-hidden /> Merge commits pushed by others
              </MenuItem>
            )}
            {status?.underWay && (
              <MenuItem danger onSelect={() => startUpdate("give_up")}>
                <RotateCcw className="size-3.5" aria-hidden /> Abort the {status.underWay}
              </MenuItem>
            )}
          </Menu>
          <Button
            size="sm"
            busy={push.isPending}
            disabled={busy || !ahead || gone}
            onClick={() => push.mutate(sandboxId)}
            title={
              !ahead
                ? checkout.pushed === null
                  ? "No commits to push"
                  : "Everything is pushed"
                : gone
                  ? GONE
                  : undefined
            }
          >
            {!push.isPending && <ArrowUpFromLine className="size-3.5" aria-hidden />}
            Push
          </Button>
        </div>
      </div>
      {error && (
        <ErrorBanner
          title={push.error ? "Could not push" : "Could not update"}
          text={errorMessage(error)}
          onClose={close}
        >
          {hasCode(error, "branch_moved") && (
            <Button size="sm" busy={update.isPending} onClick={() => startUpdate("merge", "branch")}>
              Merge them
            </Button>
          )}
          {hasCode(error, "rebase_refused") && (
            <Button size="sm" busy={update.isPending} onClick={() => startUpdate("merge")}>
              Merge instead
            </Button>
          )}
        </ErrorBanner>
      )}
      <Conflicts
        error={conflict}
        busy={update.isPending}
        onClose={() => setConflict(null)}
        onChoose={(how) => startUpdate(how, update.variables?.source)}
      />
    </>
  );
}

function reportPush(done: GitOperation): void {
  if (done.status !== "completed") toast.info("Still pushing", { description: "Progress is shown above the changes." });
  else toast.success(`Pushed ${String(done.detail.branch ?? "the branch")}`, { description: warningsOf(done) });
}

function reportUpdate(done: GitOperation, how: UpdateMethod): void {
  const { behind, source, ended } = done.detail as { behind?: number; source?: string; ended?: boolean };
  const conflicts = conflictsOf(done);
  if (done.status !== "completed")
    toast.info("Still updating", { description: "Progress is shown above the changes." });
  else if (how === "give_up") toast.success(ended ? "The branch was restored" : "No merge or rebase was in progress");
  else if (!behind) toast.success(`No new commits on ${source ?? "the base branch"}`);
  else if (how === "check")
    toast.info(`${pluralize(behind, "new commit")} on ${source}`, {
      description: conflicts.length
        ? `They conflict with the branch in ${conflicts.slice(0, 5).join(", ")}.`
        : "They can be merged without conflicts.",
    });
  else toast.success(`Updated with ${pluralize(behind, "commit")} from ${source}`, { description: warningsOf(done) });
}

function conflictsOf(done: GitOperation): string[] {
  const { conflicts } = done.detail;
  return Array.isArray(conflicts)
    ? conflicts.map((conflict) => String((conflict as { path?: unknown }).path ?? conflict))
    : [];
}

/** Return git's warnings as one text. */
function warningsOf(done: GitOperation): string | undefined {
  const { warnings } = done.detail;
  return Array.isArray(warnings) && warnings.length ? warnings.map(String).join(" ") : undefined;
}
