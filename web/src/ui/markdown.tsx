import { lazy, Suspense } from "react";

const Rendered = lazy(() => import("./markdown-rendered"));

/** What an agent or a person wrote. No HTML of theirs is ever taken; links are checked; images are shown as links. */
export function Markdown({ text }: { text: string }) {
  return (
    <Suspense fallback={<div className="whitespace-pre-wrap">{text}</div>}>
      <Rendered text={text} />
    </Suspense>
  );
}
