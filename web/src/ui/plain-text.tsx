import { splitCode } from "@/lib/fences";
import { Code } from "./code";

/** Plain text with line breaks kept and code shown as code. Not Markdown: no other syntax is interpreted. */
export function PlainText({ text }: { text: string }) {
  return (
    <div className="min-w-0 break-words whitespace-pre-wrap">
      {splitCode(text).map((piece, index) =>
        piece.kind === "block" ? (
          <Code key={index} text={piece.text} language={piece.language} />
        ) : piece.kind === "inline" ? (
          <code key={index} className="rounded bg-sunken px-1 py-px font-mono text-[0.92em]">
            {piece.text}
          </code>
        ) : (
          <span key={index}>{piece.text}</span>
        ),
      )}
    </div>
  );
}
