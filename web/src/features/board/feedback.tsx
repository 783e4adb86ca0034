import { useState } from "react";
import { Button } from "@/ui/button";
import { Dialog } from "@/ui/dialog";
import { Field, Textarea } from "@/ui/field";

const MOST = 50_000;

/** A card goes back from review with words: they are the agent's next prompt. */
export function FeedbackDialog({
  title,
  onSend,
  onClose,
}: {
  title: string;
  onSend: (words: string) => void;
  onClose: () => void;
}) {
  const [words, setWords] = useState("");
  const [missing, setMissing] = useState(false);
  const send = () => {
    if (words.trim()) onSend(words.trim());
    else setMissing(true);
  };
  return (
    <Dialog
      open
      onOpenChange={(open) => !open && onClose()}
      title="Back to the agent"
      description={title}
      footer={
        <>
          <Button onClick={onClose}>Cancel</Button>
          <Button look="primary" onClick={send}>
            Send back
          </Button>
        </>
      }
    >
      <Field
        label="What should be different?"
        hint="The agent reads this and goes on with the work it has done. Ctrl+Enter sends it."
        error={missing && !words.trim() ? "Without words the agent would not know what to do." : undefined}
      >
        {(wear) => (
          <Textarea
            {...wear}
            rows={6}
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
    </Dialog>
  );
}
