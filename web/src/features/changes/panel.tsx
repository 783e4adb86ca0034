/** What a session has changed: to read, to comment on, to commit and push. */
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { GitCompare, MoonStar, Undo2 } from "lucide-react";
import { useRef, useState } from "react";
import type { Attempt, FileDiff, Session, Task } from "@/api/types";
import { useEvents } from "@/live/context";
import { IconButton } from "@/ui/button";
import { Confirm } from "@/ui/dialog";
import { Select } from "@/ui/field";
import { Empty, ErrorState, Loaded, Loading } from "@/ui/states";
import { Ago } from "@/ui/time";
import { failed, toast } from "@/ui/toast";
import { useComments } from "./comments";
import { CommitBox } from "./commit-box";
import { DiffView } from "./diff-view";
import { GitBar } from "./git-bar";
import { Operations } from "./operations";
import * as queries from "./queries";
import { SendComments } from "./send-comments";

const AGAIN_MS = 2000;

/** The work tree changes under the agent's hands: read again when a turn ends, or files or commands have told of something. */
function useFresh(sandboxId: string, sessionId: string): () => void {
  const client = useQueryClient();
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  const refresh = () => void client.invalidateQueries({ queryKey: ["git", sandboxId] });
  useEvents((event) => {
    const turn = event.kind.startsWith("turn.") && event.sessionId === sessionId;
    const here = event.sandboxId === sandboxId && /^(file\.|sandbox\.|command\.finished)/.test(event.kind);
    if (!turn && !here) return;
    clearTimeout(timer.current);
    timer.current = setTimeout(refresh, turn ? 100 : AGAIN_MS);
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
  /** The sandbox was destroyed, or has failed: nothing wakes it. */
  gone: boolean;
  task?: Task | undefined;
  attempt?: Attempt | undefined;
}) {
  const sessionId = session.id;
  const [against, setAgainst] = useState("base");
  const checkout = useQuery(queries.checkout(sandboxId));
  const status = useQuery({ ...queries.status(sandboxId), enabled: !checkout.error });
  const pushed = checkout.data?.pushed ?? null;
  const since = against === "pushed" ? (pushed ?? "base") : against;
  const diff = useQuery({ ...queries.diff(sandboxId, since), enabled: !checkout.error }); // all three at once
  const store = useComments(sessionId);
  const refresh = useFresh(sandboxId, sessionId);
  const client = useQueryClient();
  const discard = useMutation({
    mutationFn: (path: string) => queries.git.discard(sandboxId, [path]),
    onSuccess: () => {
      toast.success("Discarded", { description: "A checkpoint was kept before: see History." });
      return client.invalidateQueries({ queryKey: ["git", sandboxId] });
    },
    onError: failed("Could not discard the file's changes"),
  });

  if (queries.isCode(checkout.error, "no_checkout") || queries.isCode(checkout.error, "not_found")) {
    return (
      <>
        <Operations sandboxId={sandboxId} />
        <Empty title="No checkout yet" icon={<GitCompare className="size-6" aria-hidden />}>
          {checkout.error.message} Once there is one, its changes are shown here.
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

  const loose = new Set(status.data?.entries.map((entry) => entry.path));
  const discardFile = (file: FileDiff) =>
    loose.has(file.path) && (
      <Confirm
        trigger={
          <IconButton size="sm" label={`Discard what is not committed of ${file.path}`}>
            <Undo2 className="size-3.5" aria-hidden />
          </IconButton>
        }
        title="Discard this file's changes?"
        action="Discard"
        onConfirm={() => discard.mutateAsync(file.path)}
      >
        <span className="font-mono text-xs [overflow-wrap:anywhere]">{file.path}</span> will be as the last commit has
        it. A checkpoint is kept first.
      </Confirm>
    );
  const choices = [
    { value: "base", label: "All of the branch", detail: `since it left ${checkout.data.baseBranch}` },
    { value: "head", label: "Not committed", detail: "since the last commit" },
    ...(pushed ? [{ value: "pushed", label: "Not pushed", detail: "since the last push" }] : []),
  ];
  return (
    <div className="flex min-h-0 flex-1 flex-col">
      <GitBar
        sandboxId={sandboxId}
        sessionId={sessionId}
        checkout={checkout.data}
        status={status.data}
        refreshing={diff.isFetching || status.isFetching}
        onRefresh={refresh}
      />
      <Operations sandboxId={sandboxId} />
      {status.data && !status.data.live && (
        <p className="flex items-center gap-2 border-b bg-idle-soft px-3 py-1 text-xs text-soft">
          <MoonStar className="size-3.5 shrink-0" aria-hidden />
          <span>
            {gone ? "The sandbox is gone." : "The sandbox does not run."} This is how its files were kept
            {status.data.asOf ? (
              <>
                {" "}
                <Ago at={status.data.asOf} />
              </>
            ) : (
              " last"
            )}
            {gone ? ". To change them, start a new sandbox." : "; committing or pushing wakes it."}
          </span>
        </p>
      )}
      {status.data?.underWay && (
        <p className="border-b bg-warn-soft px-3 py-1 text-xs text-warn">
          A {status.data.underWay} is under way: resolve the conflicts and commit, or give it up under Update.
        </p>
      )}
      {status.data && !gone && <CommitBox sandboxId={sandboxId} status={status.data} />}
      <Loaded query={diff} loading={<Loading lines={10} label="Reading the changes" />}>
        {(found) => (
          <DiffView
            diff={found}
            commentable={store}
            viewedAs={sessionId}
            onLoad={(file) => queries.fileDiff(sandboxId, since, file)}
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
            empty={<Nothing against={against} base={checkout.data.baseBranch} />}
          />
        )}
      </Loaded>
      <SendComments session={session} task={task} attempt={attempt} store={store} files={diff.data?.files ?? []} />
    </div>
  );
}

function Nothing({ against, base }: { against: string; base: string }) {
  const words: Record<string, [string, string]> = {
    base: [
      "No changes yet",
      `The branch has nothing that ${base} has not. What the agent changes is shown here as it happens.`,
    ],
    head: ["Everything is committed", "There is nothing in the files that the last commit has not."],
    pushed: ["Everything is pushed", "There is nothing in the files that was not pushed."],
  };
  const [title, text] = words[against] ?? ["No changes", ""];
  return (
    <Empty title={title} icon={<GitCompare className="size-6" aria-hidden />}>
      {text}
    </Empty>
  );
}
