import { hasHidden, splitHidden } from "@/lib/hidden-characters";

/** Untrusted text in which characters that are invisible or change the direction of text are shown as markers. */
export function VisibleText({ text }: { text: string }) {
  if (!hasHidden(text)) return text;
  return splitHidden(text).map((piece, index) =>
    piece.hidden ? (
      <span
        key={index}
        title="Invisible or direction-changing character"
        className="rounded-[2px] bg-warn-soft px-px text-warn select-none"
      >
        {piece.text}
      </span>
    ) : (
      <span key={index}>{piece.text}</span>
    ),
  );
}
