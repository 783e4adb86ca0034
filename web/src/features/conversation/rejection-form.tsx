import { type KeyboardEvent, useState } from "react";
import { Button } from "@/ui/button";
import { Field, Textarea } from "@/ui/field";

const MAX_LENGTH = 50_000;

/** Ask what the agent should do instead before a permission request is denied. Without a message, some agents end their turn. */
export function RejectionForm({
  busy,
  onDeny,
  onCancel,
}: {
  busy: boolean;
  onDeny: (message: string | undefined) => void;
  onCancel: () => void;
}) {
  const [text, setText] = useState("");
  const deny = () => !busy && onDeny(text.trim() || undefined);
  const handleKey = (event: KeyboardEvent) => {
    if (event.key === "Escape") onCancel();
    if (event.key !== "Enter" || event.shiftKey || event.nativeEvent.isComposing) return;
    event.preventDefault();
    deny();
  };
  return (
    <div className="flex flex-col gap-2">
      <Field
        label="What should the agent do instead?"
        hint="Sent to the agent with the denial. Without a message, some agents stop."
      >
        {(control) => (
          <Textarea
            {...control}
            rows={2}
            autoFocus
            maxLength={MAX_LENGTH}
            value={text}
            onChange={(event) => setText(event.target.value)}
            onKeyDown={handleKey}
          />
        )}
      </Field>
      <div className="flex flex-wrap gap-2">
        <Button look="danger" busy={busy} onClick={deny}>
          {text.trim() ? "Deny and send" : "Deny without a message"}
        </Button>
        <Button disabled={busy} onClick={onCancel}>
          Cancel
        </Button>
      </div>
    </div>
  );
}
