/** All comments together become the agent's next prompt. */
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { Send, Trash2 } from "lucide-react";
import { useState } from "react";
import { api, got } from "@/api/client";
import type { FileDiff, Task } from "@/api/types";
import { appendToDraft } from "@/features/conversation/compose";
import { plural } from "@/lib/format";
import { Button, IconButton } from "@/ui/button";
import { Confirm, Dialog } from "@/ui/dialog";
import { Field, Textarea } from "@/ui/field";
import { failed, toast } from "@/ui/toast";
import { type CommentStore, placeWords, promptOf } from "./comments";

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
  const [note, setNote] = useState("");
  const { comments } = store;
  const attempt = task?.attempts.find((one) => one.sessionId === sessionId);
  const inReview = task?.status === "in_review" && (attempt?.status === "in_review" || attempt?.status === "ready");
  const text = promptOf(comments, files, note);
  const done = (said: string, description: string) => {
    store.clear();
    setNote("");
    setOpen(false);
    toast.success(said, { description });
  };
  const send = useMutation({
    mutationFn: async () => {
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
    onSuccess: () =>
      done(
        `Sent ${plural(comments.length, "comment")}`,
        inReview ? "The task is in progress again." : "They are the agent's next turn.",
      ),
    onError: failed("Could not send the comments"),
  });
  const keep = () => {
    appendToDraft(sessionId, text);
    done("Added to the draft", "Finish and send it in the conversation.");
  };
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
      <Dialog
        open={open}
        onOpenChange={setOpen}
        title={`Send ${plural(comments.length, "comment")}`}
        description={
          inReview
            ? "The task goes back to the agent, which reads them as feedback."
            : "They become the agent's next turn; if it is at work, they wait in its queue."
        }
        footer={
          <>
            <Button onClick={keep} disabled={send.isPending}>
              Add to draft
            </Button>
            <Button look="primary" busy={send.isPending} onClick={() => send.mutate()}>
              Send to the agent
            </Button>
          </>
        }
      >
        <Field label="In your own words" hint="Stands above the comments; may be left empty.">
          {(wear) => <Textarea {...wear} rows={2} value={note} onChange={(event) => setNote(event.target.value)} />}
        </Field>
        <ul className="mt-3 flex flex-col gap-1.5">
          {comments.map((comment) => (
            <li key={comment.id} className="rounded-md border px-2.5 py-1.5">
              <div className="flex items-center gap-2">
                <p className="min-w-0 flex-1 font-mono text-2xs text-soft [overflow-wrap:anywhere]">
                  {comment.path}, {placeWords(comment)}
                </p>
                <IconButton
                  size="sm"
                  label={`Remove the comment on ${comment.path}`}
                  onClick={() => store.remove(comment.id)}
                >
                  <Trash2 className="size-3.5" aria-hidden />
                </IconButton>
              </div>
              <p className="text-[13px] whitespace-pre-wrap [overflow-wrap:anywhere]">{comment.text}</p>
            </li>
          ))}
        </ul>
        <details className="mt-3 text-xs">
          <summary className="cursor-pointer text-soft">What the agent will read</summary>
          <pre
            // biome-ignore lint/a11y/noNoninteractiveTabindex: it scrolls, so the keyboard must reach it
            tabIndex={0}
            className="mt-1 max-h-64 overflow-auto rounded-md border bg-sunken p-2 font-mono text-2xs whitespace-pre-wrap"
          >
            {text}
          </pre>
        </details>
      </Dialog>
    </>
  );
}
