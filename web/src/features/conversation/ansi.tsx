import Anser from "anser";
import clsx from "clsx";
import { useMemo, useState } from "react";
import { plural } from "@/lib/format";
import { Button } from "@/ui/button";
import { CopyButton } from "@/ui/code";

const COLOURS: Record<string, string> = {
  "ansi-red": "text-bad",
  "ansi-bright-red": "text-bad",
  "ansi-green": "text-ok",
  "ansi-bright-green": "text-ok",
  "ansi-yellow": "text-warn",
  "ansi-bright-yellow": "text-warn",
  "ansi-blue": "text-info",
  "ansi-bright-blue": "text-info",
  "ansi-cyan": "text-info",
  "ansi-bright-cyan": "text-info",
  "ansi-magenta": "text-(--hl-keyword)",
  "ansi-bright-magenta": "text-(--hl-keyword)",
  "ansi-black": "text-faint",
  "ansi-bright-black": "text-faint",
};
const DECORATIONS: Record<string, string> = {
  bold: "font-semibold",
  dim: "opacity-80",
  italic: "italic",
  underline: "underline",
  strikethrough: "line-through",
};
const LINES = 200;
// Escapes other than colours would be shown as rubbish.
// biome-ignore lint/suspicious/noControlCharactersInRegex: that is what it looks for
const OTHER = /\u001b(?:\[[0-?]*[ -/]*[@-ln-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)|[()][A-Z0-9]|[=>78])/g;

/** What a program wrote, in its colours; of a long one the end, until all of it is wanted. */
export function Output({ text, label }: { text: string; label: string }) {
  const [whole, setWhole] = useState(false);
  const lines = useMemo(() => text.replace(/\s+$/, "").split("\n"), [text]);
  const hidden = whole ? 0 : Math.max(0, lines.length - LINES);
  const spans = useMemo(() => {
    const shown = lines.slice(hidden).join("\n").replace(/\r\n/g, "\n").replace(OTHER, "");
    return Anser.ansiToJson(shown.replace(/[^\n]*\r(?!\n|$)/g, ""), {
      json: true,
      use_classes: true,
      remove_empty: true,
    });
  }, [lines, hidden]);
  return (
    <div className="group relative rounded-md border bg-sunken">
      <div className="absolute top-1 right-1 opacity-0 group-focus-within:opacity-100 group-hover:opacity-100">
        <CopyButton text={text} label="Copy the output" />
      </div>
      {hidden > 0 && (
        <Button look="ghost" size="sm" onClick={() => setWhole(true)}>
          Show {plural(hidden, "earlier line")}
        </Button>
      )}
      <section
        // biome-ignore lint/a11y/noNoninteractiveTabindex: it scrolls, so the keyboard must reach it
        tabIndex={0}
        aria-label={label}
        className="max-h-96 overflow-auto p-2.5 font-mono text-xs leading-5 whitespace-pre-wrap [overflow-wrap:anywhere]"
      >
        {spans.map((span, index) => (
          <span
            key={index}
            className={
              clsx(
                COLOURS[span.fg],
                span.decorations.map((one) => DECORATIONS[one]),
              ) || undefined
            }
          >
            {span.content}
          </span>
        ))}
      </section>
    </div>
  );
}
