/** A comment below its lines, and the box for writing one. */
import { MessageSquare, Pencil, Trash2 } from "lucide-react";
import { type KeyboardEvent, useEffect, useRef, useState } from "react";
import { type Comment, describePlace, type Place } from "@/features/conversation/comments";
import { Button, IconButton } from "@/ui/button";
import { Textarea } from "@/ui/field";

const FRAME = "mx-2 my-1.5 max-w-3xl rounded-md border bg-raised font-sans";

export function CommentView({
  comment,
  loose,
  onEdit,
  onRemove,
}: {
  comment: Comment;
  /** Its lines are no longer in the diff. */
  loose: boolean;
  onEdit: (text: string) => void;
  onRemove: () => void;
}) {
  const [text, setText] = useState<string | null>(null);
  if (text !== null) {
    const done = () => {
      if (text.trim()) onEdit(text.trim());
      setText(null);
    };
    return (
      <CommentEditor
        place={comment}
        text={text}
        onText={setText}
        action="Save"
        onDone={done}
        onCancel={() => setText(null)}
      />
    );
  }
  return (
    <section aria-label={`Comment on ${comment.path}, ${describePlace(comment)}`} className={FRAME}>
      <div className="flex items-center gap-1.5 border-b px-2.5 py-0.5 text-xs text-soft">
        <MessageSquare className="size-3.5 shrink-0 text-accent" aria-hidden />
        <span className="mr-auto">
          Your comment on {describePlace(comment)}
          {loose && ", which is no longer in the diff"}
        </span>
        <IconButton size="sm" label="Edit comment" onClick={() => setText(comment.text)}>
          <Pencil className="size-3.5" aria-hidden />
        </IconButton>
        <IconButton size="sm" label="Delete comment" onClick={onRemove}>
          <Trash2 className="size-3.5" aria-hidden />
        </IconButton>
      </div>
      {loose && comment.quote && (
        <pre className="max-h-24 overflow-auto border-b bg-sunken px-2.5 py-1 font-mono text-2xs text-soft">
          {comment.quote}
        </pre>
      )}
      <p className="px-2.5 py-1.5 text-[13px] whitespace-pre-wrap [overflow-wrap:anywhere]">{comment.text}</p>
    </section>
  );
}

export function CommentEditor({
  place,
  text,
  onText,
  action,
  onDone,
  onCancel,
}: {
  place: Place;
  text: string;
  onText: (text: string) => void;
  action: string;
  onDone: () => void;
  onCancel: () => void;
}) {
  const box = useRef<HTMLTextAreaElement>(null);
  const frame = useRef<HTMLElement>(null);
  useEffect(() => {
    box.current?.focus({ preventScroll: true });
    // The list positions the box in the next frame; scroll until its buttons are visible too.
    const frameRequest = requestAnimationFrame(() => frame.current?.scrollIntoView({ block: "nearest" }));
    return () => cancelAnimationFrame(frameRequest);
  }, []);
  const handleKey = (event: KeyboardEvent) => {
    event.stopPropagation();
    if (event.key === "Enter" && (event.metaKey || event.ctrlKey)) {
      event.preventDefault();
      onDone();
    } else if (event.key === "Escape") onCancel();
  };
  return (
    <section
      ref={frame}
      aria-label={`Write a comment on ${place.path}, ${describePlace(place)}`}
      className={`${FRAME} scroll-my-2 p-2.5`}
    >
      <p className="mb-1.5 text-xs text-soft">
        On {describePlace(place)}.
        <span className="pointer-coarse:hidden"> Shift+click another line number to select a range.</span>
      </p>
      <Textarea
        ref={box}
        rows={3}
        value={text}
        aria-label="Comment"
        placeholder="What should be different here?"
        onChange={(event) => onText(event.target.value)}
        onKeyDown={handleKey}
      />
      <div className="mt-1.5 flex justify-end gap-2">
        <Button size="sm" onClick={onCancel}>
          Cancel
        </Button>
        <Button size="sm" look="primary" disabled={!text.trim()} onClick={onDone}>
          {action}
        </Button>
      </div>
    </section>
  );
}
