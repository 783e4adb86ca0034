import { type ComponentProps, memo } from "react";
import ReactMarkdown, { type Components } from "react-markdown";
import remarkGfm from "remark-gfm";
import { sanitizeHref } from "@/lib/links";
import { Code } from "./code";
import { keepPaths } from "./markdown-paths";

// ~/bin:~/.local/bin and 5~10 are not struck through: that takes two tildes
const PLUGINS: ComponentProps<typeof ReactMarkdown>["remarkPlugins"] = [[remarkGfm, { singleTilde: false }], keepPaths];

/** Return the URL if it can be opened. Relative ones are files of a repository or places in the text, which have no address here. */
function targetOf(href: unknown): string | undefined {
  return typeof href === "string" && /^(\/|[a-z][a-z\d+.-]*:)/i.test(href) ? sanitizeHref(href) : undefined;
}

const COMPONENTS: Components = {
  a({ href, children }) {
    const safe = targetOf(href);
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
    const safe = targetOf(src);
    return safe ? (
      <a href={safe} target="_blank" rel="noreferrer noopener nofollow" className="text-accent underline">
        {alt || "image"}
      </a>
    ) : (
      <span>{alt || "image"}</span>
    );
  },
  pre({ children }) {
    return <>{children}</>;
  },
  code({ className, children }) {
    const text = String(children ?? "");
    const language = /language-([\w+#-]+)/.exec(className ?? "")?.[1];
    // a block ends with a line break, unless it is empty
    if (!language && text && !text.includes("\n")) {
      return <code className="rounded bg-sunken px-1 py-px font-mono text-[0.92em] whitespace-pre-wrap">{text}</code>;
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
