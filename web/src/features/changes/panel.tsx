/** The changes of a session: review, comment, commit and push. */
import { GitCompare, MoonStar, Undo2 } from "lucide-react";
import { useRef, useState } from "react";
import { hasCode } from "@/api/client";
import { readFileDiff, useCheckout, useDiff, useDiscardChanges, useGitStatus } from "@/api/queries/git";
import { useRefreshGit } from "@/api/refresh";
import type { Attempt, FileDiff, Session, Task } from "@/api/types";
import { useComments } from "@/features/conversation/comments";
import { promptOptions } from "@/features/conversation/prompt-options";
import { useEvents } from "@/live/context";
import { IconButton } from "@/ui/button";
import { Confirm } from "@/ui/dialog";
import { Select } from "@/ui/field";
import { Empty, ErrorState, Loaded, Loading } from "@/ui/states";
import { Ago } from "@/ui/time";
import { showError, toast } from "@/ui/toast";
import { CommitBox } from "./commit-box";
import { DiffView } from "./diff-view";
import { GitBar } from "./git-bar";
import { Operations } from "./operations";
import { SendComments } from "./send-comments";

const REFRESH_MS = 2000;

/** Refresh the git queries when a turn changes state, files change or a command finishes. Returns a manual refresh. */
function useRefreshOnEvents(sandboxId: string, sessionId: string): () => Promise<void> {
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  const refresh = useRefreshGit(sandboxId);
  useEvents((event) => {
    const turn = event.kind.startsWith("turn.") && event.sessionId === sessionId;
    const here = event.sandboxId === sandboxId && /^(file\.|sandbox\.|command\.finished)/.test(event.kind);
    if (!turn && !here) return;
    clearTimeout(timer.current);
    timer.current = setTimeout(refresh, turn ? 100 : REFRESH_MS);
  });
  return refresh;
}

export function ChangesPanel({
  sandboxId,
  session,
  gone,
  task,
  attempt,
}: {
  sandboxId: string;
  session: Session;
  /** The sandbox was deleted or has failed and cannot be resumed. */
  gone: boolean;
  task?: Task | undefined;
  attempt?: Attempt | undefined;
}) {
  const sessionId = session.id;
  const [against, setAgainst] = useState("base");
  const checkout = useCheckout(sandboxId);
  const status = useGitStatus(sandboxId, { enabled: !checkout.error });
  const pushed = checkout.data?.pushed ?? null;
  const since = against === "pushed" ? (pushed ?? "base") : against;
  const diff = useDiff(sandboxId, since, { enabled: !checkout.error }); // The three queries run in parallel.
  const store = useComments(sessionId);
  const refresh = useRefreshOnEvents(sandboxId, sessionId);
  const discard = useDiscardChanges({
    onSuccess: () => toast.success("Discarded", { description: "A checkpoint was saved first. See History." }),
    onError: showError("Could not discard the file's changes"),
  });

  if (hasCode(checkout.error, "no_checkout") || hasCode(checkout.error, "not_found")) {
    return (
      <>
        <Operations sandboxId={sandboxId} />
        <Empty title="No checkout yet" icon={<GitCompare className="size-6" aria-hidden />}>
          {checkout.error.message} Changes appear here once the repository is checked out.
        </Empty>
      </>
    );
  }
  if (!checkout.data)
    return checkout.error ? (
      <ErrorState error={checkout.error} retry={() => checkout.refetch()} />
    ) : (
      <Loading lines={8} />
    );

  // Comments that were written before the sandbox was deleted stay visible.
  const canComment = store.comments.length > 0 || !promptOptions(session, task, attempt).provision;
  const uncommitted = new Set(status.data?.entries.map((entry) => entry.path));
  const discardFile = (file: FileDiff) =>
    !gone &&
    uncommitted.has(file.path) && (
      <Confirm
        trigger={
          <IconButton size="sm" label={`Discard uncommitted changes in ${file.path}`}>
            <Undo2 className="size-3.5" aria-hidden />
          </IconButton>
        }
        title="Discard this file's changes?"
        action="Discard"
        onConfirm={() => discard.mutateAsync({ sandboxId, paths: [file.path] })}
      >
        <span className="font-mono text-xs [overflow-wrap:anywhere]">{file.path}</span> will be reset to the last
        commit. A checkpoint is saved first.
      </Confirm>
    );
  const choices = [
    { value: "base", label: "All changes", detail: `compared with ${checkout.data.baseBranch}` },
    { value: "head", label: "Uncommitted", detail: "since the last commit" },
    ...(pushed ? [{ value: "pushed", label: "Unpushed", detail: "since the last push" }] : []),
  ];
  return (
    <div className="flex min-h-0 flex-1 flex-col">
      <GitBar
        sandboxId={sandboxId}
        sessionId={sessionId}
        checkout={checkout.data}
        status={status.data}
        gone={gone}
        refreshing={diff.isFetching || status.isFetching}
        onRefresh={refresh}
      />
      <Operations sandboxId={sandboxId} />
      {status.data && !status.data.live && (
        <p className="flex items-center gap-2 border-b bg-idle-soft px-3 py-1 text-xs text-soft">
          <MoonStar className="size-3.5 shrink-0" aria-hidden />
          <span>
            {gone ? "The sandbox is gone." : "The sandbox is not running."} Showing files
            {status.data.asOf ? (
              <>
                {" from "}
                <Ago at={status.data.asOf} />
              </>
            ) : (
              " as last saved"
            )}
            {gone
              ? ". Start a new sandbox to change or comment on them."
              : ". Committing or pushing resumes the sandbox."}
          </span>
        </p>
      )}
      {status.data?.underWay && (
        <p className="border-b bg-warn-soft px-3 py-1 text-xs text-warn">
          A {status.data.underWay} is in progress. Resolve the conflicts and commit, or abort it in the Update menu.
        </p>
      )}
      {status.data && !gone && <CommitBox sandboxId={sandboxId} status={status.data} />}
      <Loaded query={diff} loading={<Loading lines={10} label="Loading changes" />}>
        {(found) => (
          <DiffView
            diff={found}
            commentable={canComment ? store : undefined}
            viewedAs={sessionId}
            onLoad={(file) => readFileDiff(sandboxId, since, file)}
            fileActions={discardFile}
            bar={
              <Select
                label="Compare with"
                className="!h-7 !w-auto text-xs"
                value={against === "pushed" && !pushed ? "base" : against}
                onChange={setAgainst}
                choices={choices}
              />
            }
            empty={
              diff.isFetching && uncommitted.size > 0 && against !== "pushed" ? (
                <Loading lines={10} label="Loading changes" />
              ) : (
                <NoChanges
                  against={against}
                  base={checkout.data.baseBranch}
                  gone={gone}
                  merged={attempt?.status === "merged"}
                />
              )
            }
          />
        )}
      </Loaded>
      <SendComments session={session} task={task} attempt={attempt} store={store} files={diff.data?.files ?? []} />
    </div>
  );
}

/** Exported for tests. */
export function NoChanges({
  against,
  base,
  gone,
  merged,
}: {
  against: string;
  base: string;
  gone: boolean;
  merged: boolean;
}) {
  const words: Record<string, [string, string]> = {
    base: merged
      ? ["Merged", `${base} contains these changes.`]
      : gone
        ? ["No changes", `No differences from ${base}.`]
        : ["No changes yet", `No differences from ${base}. The agent's changes appear here as it works.`],
    head: ["Everything is committed", "No differences from the last commit."],
    pushed: ["Everything is pushed", "No differences from the last push."],
  };
  const [title, text] = words[against] ?? ["No changes", ""];
  return (
    <Empty title={title} icon={<GitCompare className="size-6" aria-hidden />}>
      {text}
    </Empty>
  );
}
