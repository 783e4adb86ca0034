/** The history of a session's branch: commits, checkpoints, pushes and its base. */
import clsx from "clsx";
import { GitCommitHorizontal } from "lucide-react";
import { type ReactNode, useState } from "react";
import { hasCode } from "@/api/client";
import { useCheckout, useCheckpoints, useCommits, useGitStatus } from "@/api/queries/git";
import type { Commit } from "@/api/types";
import { Operations } from "@/features/changes/operations";
import { pluralize } from "@/lib/format";
import { Badge } from "@/ui/badge";
import { Button } from "@/ui/button";
import { CopyButton } from "@/ui/code";
import { Empty, ErrorState, Loading } from "@/ui/states";
import { Ago } from "@/ui/time";
import { Checkpoints, SaveCheckpointButton } from "./checkpoints";
import { CommitSheet } from "./commit-sheet";
import { type Entry, timeline } from "./timeline";

export function HistoryPanel({
  sandboxId,
  sessionId,
  projectId,
  gone,
}: {
  sandboxId: string;
  sessionId: string;
  projectId: string;
  /** The sandbox was deleted or has failed: no checkpoint can be saved. */
  gone: boolean;
}) {
  const checkout = useCheckout(sandboxId);
  const status = useGitStatus(sandboxId, { enabled: !!checkout.data });
  const commits = useCommits(sandboxId, { enabled: !!checkout.data });
  const checkpoints = useCheckpoints(sessionId);
  const [open, setOpen] = useState<{ commit: Commit; pushed: boolean } | null>(null);

  if (hasCode(checkout.error, "no_checkout") || hasCode(checkout.error, "not_found")) {
    return (
      <Empty title="No history yet" icon={<GitCommitHorizontal className="size-6" aria-hidden />}>
        {checkout.error.message}
      </Empty>
    );
  }
  const error = checkout.error ?? commits.error ?? checkpoints.error;
  if (!checkout.data || !commits.data || !checkpoints.data) {
    const again = () => void Promise.all([checkout.refetch(), commits.refetch(), checkpoints.refetch()]);
    return error ? <ErrorState error={error} retry={again} /> : <Loading lines={8} />;
  }
  const loaded = commits.data.pages.flatMap((page) => page.items);
  const before = commits.data.pages.at(-1)?.base ?? [];
  const kept = checkpoints.data.pages.flatMap((page) => page.items);
  const { pushed, baseBranch, baseCommit } = checkout.data;
  const entries = timeline({ commits: loaded, more: commits.hasNextPage, checkpoints: kept, pushed });
  const loose = status.data?.entries.length ?? 0;
  return (
    <div className="flex min-h-0 flex-1 flex-col">
      <div className="flex flex-wrap items-center gap-2 border-b px-3 py-1.5">
        <p className="mr-auto text-xs text-soft">
          {pluralize(loaded.length, "commit")}
          {commits.hasNextPage && " or more"}, {pluralize(kept.length, "checkpoint")}
          {checkpoints.hasNextPage && " or more"}
        </p>
        {!gone && <SaveCheckpointButton sandboxId={sandboxId} sessionId={sessionId} />}
      </div>
      <Operations sandboxId={sandboxId} />
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: it scrolls, so the keyboard must reach it */}
      <section className="min-h-0 flex-1 overflow-y-auto px-3 py-3" aria-label="History" tabIndex={0}>
        <ol className="max-w-4xl">
          {loose > 0 && (
            <TimelineItem dot="border-2 border-dashed border-warn" rail="border-dashed border-line-strong">
              <p className="py-1 text-[13px] text-soft">{pluralize(loose, "file")} not committed yet</p>
            </TimelineItem>
          )}
          {entries.map((entry) => (
            <TimelineEntry
              key={entry.key}
              entry={entry}
              baseBranch={baseBranch}
              baseCommit={baseCommit}
              sessionId={sessionId}
              onOpen={setOpen}
            />
          ))}
        </ol>
        {before.length > 0 && (
          <ul className="max-w-4xl pl-6 text-xs text-soft" aria-label={`Commits of ${baseBranch}`}>
            {before.map((commit) => (
              <li key={commit.id} className="flex flex-wrap gap-x-2 py-0.5">
                <span className="font-mono text-faint">{commit.id.slice(0, 8)}</span>
                <span className="min-w-0 flex-1 [overflow-wrap:anywhere]">{commit.subject || "(no message)"}</span>
                <Ago at={commit.committedAt} className="text-faint" />
              </li>
            ))}
          </ul>
        )}
        <div className="mt-2 flex flex-wrap gap-2 pl-6">
          {commits.hasNextPage && (
            <Button size="sm" busy={commits.isFetchingNextPage} onClick={() => commits.fetchNextPage()}>
              Load older commits
            </Button>
          )}
          {checkpoints.hasNextPage && (
            <Button size="sm" busy={checkpoints.isFetchingNextPage} onClick={() => checkpoints.fetchNextPage()}>
              Load older checkpoints
            </Button>
          )}
        </div>
      </section>
      <CommitSheet
        commit={open?.commit ?? null}
        pushed={open?.pushed ?? false}
        sandboxId={sandboxId}
        projectId={projectId}
        onClose={() => setOpen(null)}
      />
    </div>
  );
}

function TimelineEntry({
  entry,
  baseBranch,
  baseCommit,
  sessionId,
  onOpen,
}: {
  entry: Entry;
  baseBranch: string;
  baseCommit: string;
  sessionId: string;
  onOpen: (open: { commit: Commit; pushed: boolean }) => void;
}) {
  if (entry.kind === "base") {
    return (
      <TimelineItem dot="bg-surface border-2 border-line-strong" last>
        <p className="flex flex-wrap items-center gap-x-2 py-1 text-[13px] text-soft">
          Branched from <span className="font-mono text-xs">{baseBranch}</span>
          <span className="font-mono text-xs text-faint">{baseCommit.slice(0, 10)}</span>
        </p>
      </TimelineItem>
    );
  }
  if (entry.kind === "checkpoints") {
    return (
      <TimelineItem dot="rotate-45 !size-2 !rounded-none bg-faint">
        <Checkpoints checkpoints={entry.checkpoints} sessionId={sessionId} />
      </TimelineItem>
    );
  }
  const { commit, pushed, pushedHere, newest } = entry;
  return (
    <TimelineItem dot={pushed ? "bg-ok" : "bg-accent"} rail={pushed ? "border-ok" : "border-accent"}>
      <div className="flex items-start gap-2 rounded-md py-0.5">
        <div className="min-w-0 flex-1">
          <h3>
            <button
              type="button"
              onClick={() => onOpen({ commit, pushed })}
              className="text-left text-[13px] font-medium [overflow-wrap:anywhere] hover:text-accent hover:underline"
            >
              {commit.subject || "(no message)"}
            </button>
          </h3>
          <p className="flex flex-wrap items-center gap-x-2 text-xs text-faint">
            <span>{commit.author.name}</span>
            <Ago at={commit.committedAt} />
            {newest && <Badge tone="accent">latest</Badge>}
            {pushedHere && <Badge tone="ok">pushed up to here</Badge>}
            {commit.parents.length > 1 && <Badge>merge</Badge>}
          </p>
        </div>
        <span className="flex shrink-0 items-center font-mono text-xs text-soft">
          {commit.id.slice(0, 8)}
          <CopyButton text={commit.id} label="Copy commit ID" />
        </span>
      </div>
    </TimelineItem>
  );
}

/** One entry on the timeline. */
function TimelineItem({
  dot,
  rail = "border-line-strong",
  last = false,
  children,
}: {
  dot: string;
  rail?: string;
  last?: boolean;
  children: ReactNode;
}) {
  return (
    <li className="relative flex gap-3 pb-2">
      {!last && <span className={clsx("absolute top-3 bottom-[-0.75rem] left-[5px] border-l-2", rail)} aria-hidden />}
      <span className="relative z-[1] mt-2 grid size-3 shrink-0 place-items-center" aria-hidden>
        <span className={clsx("size-3 rounded-full", dot)} />
      </span>
      <div className="min-w-0 flex-1">{children}</div>
    </li>
  );
}
