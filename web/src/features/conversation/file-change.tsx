import clsx from "clsx";
import { useMemo } from "react";
import { pluralize } from "@/lib/format";
import { markHidden } from "@/lib/hidden-characters";
import { VisibleText } from "@/ui/visible-text";
import { countChanges, diffLines } from "./diff-lines";
import { shortPath } from "./message-parts";

const MOST = 400;
const LOOKS = { same: "", add: "bg-add", del: "bg-del", gap: "text-faint" };
const SIGNS = { same: " ", add: "+", del: "-", gap: "⋯" };

/** The diff of one file that a tool call changes. */
export function FileChange({ path, before, after }: { path: string; before: string | null; after: string }) {
  const lines = useMemo(() => diffLines(before, after), [before, after]);
  const { added, removed } = countChanges(lines);
  const shown = lines.slice(0, MOST);
  return (
    <figure className="overflow-hidden rounded-md border bg-surface">
      <figcaption className="flex items-center gap-2 border-b bg-sunken px-2.5 py-1 text-xs">
        <span className="min-w-0 truncate font-mono" title={markHidden(path)}>
          <VisibleText text={shortPath(path)} />
        </span>
        <span className="ml-auto shrink-0 tabular-nums">
          <span className="text-ok">+{added}</span> <span className="text-bad">−{removed}</span>
        </span>
      </figcaption>
      <section
        className="max-h-96 overflow-auto font-mono text-xs leading-5"
        // biome-ignore lint/a11y/noNoninteractiveTabindex: it scrolls, so the keyboard must reach it
        tabIndex={0}
        aria-label={`Changes in ${markHidden(path)}`}
      >
        <div className="w-max min-w-full">
          {shown.map((line, index) => (
            <div key={index} className={clsx("px-2.5 whitespace-pre", LOOKS[line.kind])}>
              <span className="mr-2 select-none text-faint">{SIGNS[line.kind]}</span>
              {line.kind === "gap" ? pluralize(Number(line.text), "line") : <VisibleText text={line.text} />}
            </div>
          ))}
          {lines.length > MOST && (
            <div className="px-2.5 text-faint">
              … {pluralize(lines.length - MOST, "more line")}. See the Changes tab.
            </div>
          )}
        </div>
      </section>
    </figure>
  );
}
