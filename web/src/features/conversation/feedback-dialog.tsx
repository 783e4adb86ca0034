import { Trash2 } from "lucide-react";
import { useState } from "react";
import type { FileDiff } from "@/api/types";
import { isCoarse } from "@/lib/pointer";
import { Button, IconButton } from "@/ui/button";
import { Dialog } from "@/ui/dialog";
import { Field, Textarea } from "@/ui/field";
import { describePlace, promptOf, useComments } from "./comments";
import { useDraft } from "./prompt-draft";

const MOST = 50_000;
const REVIEW = {
  title: "Request changes",
  action: "Request changes",
  label: "What should be different?",
  hint: "The agent continues its work with this feedback.",
};
const TURN = {
  title: "Send to the agent",
  action: "Send to the agent",
  label: "Message (optional)",
  hint: "Placed above the comments.",
};

/**
 * Write the agent's next message: the user's text, and the unsent comments on the session's changes. Both are kept until `onSend` calls
 * `sent`. `sessionId` is undefined if there is nothing to comment on.
 */
export function FeedbackDialog({
  title,
  sessionId,
  files = [],
  inReview = true,
  busy = false,
  onSend,
  onClose,
}: {
  title: string;
  sessionId: string | undefined;
  files?: FileDiff[];
  inReview?: boolean;
  busy?: boolean;
  onSend: (words: string, sent: () => void) => void;
  onClose: () => void;
}) {
  const [words, setWords] = useDraft(sessionId ?? ""); // Shared with the message box of the conversation.
  const store = useComments(sessionId ?? "");
  const [missing, setMissing] = useState(false);
  const shown = inReview ? REVIEW : TURN;
  const { comments } = store;
  const empty = !words.trim() && !comments.length;
  const text = comments.length ? promptOf(comments, files, words) : words.trim();
  const send = () => {
    if (busy) return;
    if (empty) setMissing(true);
    else
      onSend(text, () => {
        setWords("");
        store.removeAll(comments.map((comment) => comment.id));
      });
  };
  return (
    <Dialog
      open
      onOpenChange={(open) => !open && onClose()}
      title={shown.title}
      description={title}
      footer={
        <>
          <Button onClick={onClose}>Cancel</Button>
          <Button look="primary" busy={busy} onClick={send}>
            {shown.action}
          </Button>
        </>
      }
    >
      <Field
        label={shown.label}
        hint={isCoarse() ? shown.hint : `${shown.hint} Press Ctrl+Enter to send.`}
        error={missing && empty ? "Write what the agent should do." : undefined}
      >
        {(control) => (
          <Textarea
            {...control}
            rows={comments.length ? 3 : 6}
            maxLength={MOST}
            value={words}
            autoFocus
            onChange={(event) => setWords(event.target.value)}
            onKeyDown={(event) => {
              if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) send();
            }}
          />
        )}
      </Field>
      {comments.length > 0 && (
        <>
          <ul aria-label="Comments" className="mt-3 flex flex-col gap-1.5">
            {comments.map((comment) => (
              <li key={comment.id} className="rounded-md border px-2.5 py-1.5">
                <div className="flex items-center gap-2">
                  <p className="min-w-0 flex-1 font-mono text-2xs text-soft [overflow-wrap:anywhere]">
                    {comment.path}, {describePlace(comment)}
                  </p>
                  <IconButton
                    size="sm"
                    label={`Delete comment on ${comment.path}`}
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
            <summary className="cursor-pointer text-soft">Message preview</summary>
            <pre
              // biome-ignore lint/a11y/noNoninteractiveTabindex: it scrolls, so the keyboard must reach it
              tabIndex={0}
              className="mt-1 max-h-64 overflow-auto rounded-md border bg-sunken p-2 font-mono text-2xs whitespace-pre-wrap"
            >
              {text}
            </pre>
          </details>
        </>
      )}
    </Dialog>
  );
}
