import { useMemo, useState } from "react";
import { PLAIN, spans } from "@/lib/ansi";
import { pluralize } from "@/lib/format";
import { ansiClasses } from "@/ui/ansi";
import { Button } from "@/ui/button";
import { CopyButton } from "@/ui/code";
import { VisibleText } from "@/ui/visible-text";

const LINES = 200;
/** A program's output with its ANSI colours. Of long output only the end is shown until the user asks for the rest. */
export function Output({ text, label }: { text: string; label: string }) {
  const [whole, setWhole] = useState(false);
  const lines = useMemo(() => text.replace(/\s+$/, "").split("\n"), [text]);
  const hidden = whole ? 0 : Math.max(0, lines.length - LINES);
  const pieces = useMemo(() => {
    const shown = lines.slice(hidden).join("\n").replace(/\r\n/g, "\n");
    return spans(shown.replace(/[^\n]*\r(?!\n|$)/g, ""), PLAIN);
  }, [lines, hidden]);
  return (
    <div className="group relative rounded-md border bg-sunken">
      <div className="absolute top-1 right-1 opacity-0 group-focus-within:opacity-100 group-hover:opacity-100">
        <CopyButton text={text} label="Copy output" />
      </div>
      {hidden > 0 && (
        <Button look="ghost" size="sm" onClick={() => setWhole(true)}>
          Show {pluralize(hidden, "earlier line")}
        </Button>
      )}
      <section
        // biome-ignore lint/a11y/noNoninteractiveTabindex: it scrolls, so the keyboard must reach it
        tabIndex={0}
        aria-label={label}
        className="max-h-96 overflow-auto p-2.5 font-mono text-xs leading-5 whitespace-pre-wrap [overflow-wrap:anywhere]"
      >
        {pieces.map((piece, index) => (
          <span key={index} className={ansiClasses(piece.look)}>
            <VisibleText text={piece.text} />
          </span>
        ))}
      </section>
    </div>
  );
}
