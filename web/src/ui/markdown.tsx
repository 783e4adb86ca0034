import { lazy, Suspense } from "react";

const Rendered = lazy(() => import("./markdown-rendered"));

/** Untrusted Markdown from an agent or a person. HTML is dropped, links are checked, images are shown as links. */
export function Markdown({ text }: { text: string }) {
  return (
    <Suspense fallback={<div className="whitespace-pre-wrap">{text}</div>}>
      <Rendered text={text} />
    </Suspense>
  );
}
