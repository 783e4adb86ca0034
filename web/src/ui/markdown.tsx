import { lazy, Suspense } from "react";
import { isCheapMarkdown } from "@/lib/markdown-cost";

const Rendered = lazy(() => import("./markdown-rendered"));

/** Untrusted Markdown from an agent or a person. HTML is dropped, links are checked, images are shown as links. */
export function Markdown({ text }: { text: string }) {
  const plain = <div className="whitespace-pre-wrap">{text}</div>;
  if (!isCheapMarkdown(text)) {
    return (
      <div className="min-w-0 break-words">
        <p className="mb-1 text-2xs text-faint">
          Shown without formatting, because the text is too long or too complex.
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
