import { createContext, lazy, type ReactNode, Suspense, useContext, useMemo, useState } from "react";
import { markdownCost, textsBeyondBudget } from "@/lib/markdown-cost";
import { Button } from "./button";

const Rendered = lazy(() => import("./markdown-rendered"));

const BeyondBudget = createContext<ReadonlySet<string>>(new Set());

/** Format together only as many of these untrusted texts as do not freeze the page, the first ones first. The others get a button each. */
export function MarkdownBudget({ texts, children }: { texts: string[]; children: ReactNode }) {
  const key = JSON.stringify(texts);
  const beyond = useMemo(() => textsBeyondBudget(JSON.parse(key)), [key]);
  return <BeyondBudget value={beyond}>{children}</BeyondBudget>;
}

/** Untrusted Markdown from an agent or a person. HTML is dropped, links are checked, images are shown as links. */
export function Markdown({ text }: { text: string }) {
  const tooComplex = useMemo(() => markdownCost(text) === Number.POSITIVE_INFINITY, [text]);
  const beyond = useContext(BeyondBudget).has(text);
  const [wanted, setWanted] = useState(false);
  const plain = <div className="whitespace-pre-wrap">{text}</div>;
  if (tooComplex || (beyond && !wanted)) {
    return (
      <div className="min-w-0 break-words">
        <p className="mb-1 flex flex-wrap items-center gap-x-2 text-2xs text-faint">
          {tooComplex
            ? "Shown without formatting, because the text is too long or too complex."
            : "Shown without formatting, because this page has many complex texts."}
          {!tooComplex && (
            <Button size="sm" look="ghost" onClick={() => setWanted(true)}>
              Format
            </Button>
          )}
        </p>
        {plain}
      </div>
    );
  }
  return (
    <Suspense fallback={plain}>
      <Rendered text={text} />
    </Suspense>
  );
}
