/** Send all comments together as the agent's next prompt. */
import { useMutation, useQueryClient } from "@tanstack/react-query";
import clsx from "clsx";
import { Send, Trash2 } from "lucide-react";
import { useState } from "react";
import type { Attempt, FileDiff, Session, Task } from "@/api/types";
import { FeedbackDialog } from "@/features/board/feedback";
import { prompting } from "@/features/conversation/prompting";
import { sendPrompt } from "@/features/conversation/send-prompt";
import { StartSandbox } from "@/features/conversation/start-sandbox";
import { plural } from "@/lib/format";
import { Button, IconButton } from "@/ui/button";
import { Confirm } from "@/ui/dialog";
import { failed, toast } from "@/ui/toast";
import type { CommentStore } from "./comments";

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
  const client = useQueryClient();
  const [open, setOpen] = useState(false);
  const { comments } = store;
  const allowed = prompting(session, task, attempt);
  const way = allowed.ways[0] ?? "chat";
  const round = way === "round";
  const inReview = round && !allowed.retry;
  const send = useMutation({
    mutationFn: (text: string) => sendPrompt(client, { sessionId: session.id, task, attempt, allowed, way }, { text }),
    onError: failed("Could not send the comments"),
  });
  if (!comments.length) return null;
  return (
    <>
      <section aria-label="Comments" className="flex flex-wrap items-center gap-2 border-t bg-accent-soft px-3 py-1.5">
        <p
          className={clsx("mr-auto min-w-0 flex-1 text-[13px]", allowed.closed ? "basis-64" : "basis-32")}
          aria-live="polite"
        >
          {plural(comments.length, "comment")} <span className="text-soft">not sent yet</span>
          {allowed.closed && <span className="block text-xs text-soft">{allowed.closed}</span>}
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
          {plural(comments.length, "comment")} will be deleted without being sent.
        </Confirm>
        {allowed.provision ? (
          <StartSandbox sessionId={session.id} size="sm" look="primary" />
        ) : (
          <Button size="sm" look="primary" disabled={allowed.closed !== undefined} onClick={() => setOpen(true)}>
            <Send className="size-3.5" aria-hidden />
            Send {plural(comments.length, "comment")}
          </Button>
        )}
      </section>
      {open && (
        <FeedbackDialog
          title={
            inReview && task
              ? task.title
              : allowed.hint[way] ||
                "The comments are sent as the agent's next turn. If the agent is busy, they are queued."
          }
          sessionId={session.id}
          files={files}
          inReview={inReview}
          busy={send.isPending}
          onClose={() => setOpen(false)}
          onSend={(text, sent) =>
            send.mutate(text, {
              onSuccess: () => {
                sent();
                setOpen(false);
                toast.success(`Sent ${plural(comments.length, "comment")}`, {
                  description: round ? "The task is in progress again." : "The agent gets them in its next turn.",
                });
              },
            })
          }
        />
      )}
    </>
  );
}
