/** Send all comments together as the agent's next prompt. */
import clsx from "clsx";
import { Send, Trash2 } from "lucide-react";
import { useState } from "react";
import { useSendPrompt } from "@/api/queries/conversation";
import type { Attempt, FileDiff, Session, Task } from "@/api/types";
import { type CommentStore, promptOf } from "@/features/conversation/comments";
import { FeedbackDialog } from "@/features/conversation/feedback-dialog";
import { useDraft } from "@/features/conversation/prompt-draft";
import { promptOptions, promptTarget } from "@/features/conversation/prompt-options";
import { StartSandbox } from "@/features/conversation/start-sandbox";
import { pluralize } from "@/lib/format";
import { Button, IconButton } from "@/ui/button";
import { Confirm } from "@/ui/dialog";
import { showError, toast } from "@/ui/toast";

export function SendComments({
  session,
  task,
  attempt,
  store,
  files,
}: {
  session: Session;
  task: Task | undefined;
  attempt: Attempt | undefined;
  store: CommentStore;
  files: FileDiff[];
}) {
  const [open, setOpen] = useState(false);
  const [draft] = useDraft(session.id);
  const { comments } = store;
  const options = promptOptions(session, task, attempt);
  const way = options.ways[0] ?? "chat";
  const round = way === "round";
  const inReview = round && !options.retry;
  const send = useSendPrompt({ onError: showError("Could not send the comments") });
  const sendText = (text: string, onSent: () => void) =>
    send.mutate(
      { sessionId: session.id, text, target: promptTarget(way, task, attempt, options) },
      {
        onSuccess: () => {
          onSent();
          toast.success(`Sent ${pluralize(comments.length, "comment")}`, {
            description: round ? "The task is in progress again." : "The agent gets them in its next turn.",
          });
        },
      },
    );
  /** A draft is not sent along without being shown. */
  const write = () => setOpen(true);
  const sendComments = () =>
    sendText(promptOf(comments, files, ""), () => store.removeAll(comments.map((comment) => comment.id)));
  if (!comments.length) return null;
  return (
    <>
      <section aria-label="Comments" className="flex flex-wrap items-center gap-2 border-t bg-accent-soft px-3 py-1.5">
        <p
          className={clsx("mr-auto min-w-0 flex-1 text-[13px]", options.closed ? "basis-64" : "basis-32")}
          aria-live="polite"
        >
          {pluralize(comments.length, "comment")} <span className="text-soft">not sent yet</span>
          {options.closed && <span className="block text-xs text-soft">{options.closed}</span>}
        </p>
        <Confirm
          trigger={
            <IconButton size="sm" label="Delete all comments" side="top">
              <Trash2 className="size-3.5" aria-hidden />
            </IconButton>
          }
          title="Delete all comments?"
          action="Delete"
          onConfirm={store.clear}
        >
          {pluralize(comments.length, "comment")} will be deleted without being sent.
        </Confirm>
        {options.provision ? (
          <StartSandbox sessionId={session.id} size="sm" look="primary" />
        ) : (
          <>
            <Button size="sm" disabled={options.closed !== undefined || send.isPending} onClick={write}>
              Add a message…
            </Button>
            <Button
              size="sm"
              look="primary"
              busy={send.isPending && !open}
              disabled={options.closed !== undefined}
              onClick={draft.trim() ? write : sendComments}
            >
              <Send className="size-3.5" aria-hidden />
              Send {pluralize(comments.length, "comment")}
            </Button>
          </>
        )}
      </section>
      {open && (
        <FeedbackDialog
          title={
            inReview && task
              ? task.title
              : options.hint[way] ||
                "The comments are sent as the agent's next turn. If the agent is busy, they are queued."
          }
          sessionId={session.id}
          files={files}
          inReview={inReview}
          busy={send.isPending}
          onClose={() => setOpen(false)}
          onSend={(text, onSent) =>
            sendText(text, () => {
              onSent();
              setOpen(false);
            })
          }
        />
      )}
    </>
  );
}
