/** All comments together become the agent's next prompt. */
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { Send, Trash2 } from "lucide-react";
import { useState } from "react";
import { api, got } from "@/api/client";
import type { FileDiff, Task } from "@/api/types";
import { FeedbackDialog } from "@/features/board/feedback";
import { plural } from "@/lib/format";
import { Button, IconButton } from "@/ui/button";
import { Confirm } from "@/ui/dialog";
import { failed, toast } from "@/ui/toast";
import type { CommentStore } from "./comments";

export function SendComments({
  sessionId,
  task,
  store,
  files,
}: {
  sessionId: string;
  task: Task | undefined;
  store: CommentStore;
  files: FileDiff[];
}) {
  const client = useQueryClient();
  const [open, setOpen] = useState(false);
  const { comments } = store;
  const attempt = task?.attempts.find((one) => one.sessionId === sessionId);
  const inReview = task?.status === "in_review" && (attempt?.status === "in_review" || attempt?.status === "ready");
  const send = useMutation({
    mutationFn: async (text: string) => {
      if (task && inReview) {
        const path = { task_id: task.id };
        await got(
          api.POST("/api/v1/tasks/{task_id}/move", {
            params: { path },
            body: { status: "in_progress", feedback: text },
          }),
        );
        await client.invalidateQueries({ queryKey: ["task", task.id] });
      } else {
        const path = { session_id: sessionId };
        await got(api.POST("/api/v1/sessions/{session_id}/turns", { params: { path }, body: { text } }));
      }
    },
    onError: failed("Could not send the comments"),
  });
  if (!comments.length) return null;
  return (
    <>
      <section aria-label="Comments" className="flex flex-wrap items-center gap-2 border-t bg-accent-soft px-3 py-1.5">
        <p className="mr-auto text-[13px]" aria-live="polite">
          {plural(comments.length, "comment")} <span className="text-soft">not sent yet</span>
        </p>
        <Confirm
          trigger={
            <IconButton size="sm" label="Remove all comments" side="top">
              <Trash2 className="size-3.5" aria-hidden />
            </IconButton>
          }
          title="Remove all comments?"
          action="Remove"
          onConfirm={store.clear}
        >
          {plural(comments.length, "comment")} that nobody has read will be gone.
        </Confirm>
        <Button size="sm" look="primary" onClick={() => setOpen(true)}>
          <Send className="size-3.5" aria-hidden />
          Send {plural(comments.length, "comment")}
        </Button>
      </section>
      {open && (
        <FeedbackDialog
          title={
            inReview && task
              ? task.title
              : "The comments become the agent's next turn; if it is at work, they wait in its queue."
          }
          sessionId={sessionId}
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
                  description: inReview ? "The task is in progress again." : "They are the agent's next turn.",
                });
              },
            })
          }
        />
      )}
    </>
  );
}
