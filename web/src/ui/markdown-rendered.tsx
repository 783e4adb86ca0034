import { memo } from "react";
import ReactMarkdown, { type Components } from "react-markdown";
import remarkGfm from "remark-gfm";
import { safeHref } from "@/lib/links";
import { Code } from "./code";
import { keepPaths } from "./markdown-paths";

const PLUGINS = [remarkGfm, keepPaths];

const COMPONENTS: Components = {
  a({ href, children }) {
    const safe = safeHref(href);
    if (!safe) return <span>{children}</span>;
    return (
      <a
        href={safe}
        target="_blank"
        rel="noreferrer noopener nofollow"
        className="text-accent underline underline-offset-2"
      >
        {children}
      </a>
    );
  },
  img({ src, alt }) {
    const safe = safeHref(typeof src === "string" ? src : undefined);
    return safe ? (
      <a href={safe} target="_blank" rel="noreferrer noopener nofollow" className="text-accent underline">
        {alt || "image"}
      </a>
    ) : (
      <span>{alt}</span>
    );
  },
  pre({ children }) {
    return <>{children}</>;
  },
  code({ className, children }) {
    const text = String(children ?? "");
    const language = /language-([\w+-]+)/.exec(className ?? "")?.[1];
    if (!language && !text.includes("\n")) {
      return <code className="rounded bg-sunken px-1 py-px font-mono text-[0.92em]">{text}</code>;
    }
    return <Code text={text.replace(/\n$/, "")} language={language} />;
  },
};

export default memo(function MarkdownRendered({ text }: { text: string }) {
  return (
    <div className="prose-yard min-w-0 break-words">
      <ReactMarkdown remarkPlugins={PLUGINS} components={COMPONENTS} skipHtml>
        {text}
      </ReactMarkdown>
    </div>
  );
});
