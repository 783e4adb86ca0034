import { Check, Copy } from "lucide-react";
import { useEffect, useState } from "react";
import { highlight, languageOf, type Token } from "@/lib/highlight";
import { IconButton } from "./button";
import { copyText } from "./copy-text";
import { VisibleText } from "./visible-text";

/** Highlighted code. The plain text is shown until the highlighter is loaded. */
export function Code({ text, language, path }: { text: string; language?: string | undefined; path?: string }) {
  const name = language ?? (path ? languageOf(path) : undefined);
  const [lines, setLines] = useState<Token[][] | null>(null);
  useEffect(() => {
    let current = true;
    setLines(null);
    if (name && text.length < 200_000)
      void highlight(text, name).then((highlighted) => current && setLines(highlighted));
    return () => {
      current = false;
    };
  }, [text, name]);
  return (
    <div className="group relative my-2 rounded-md border bg-sunken">
      <div className="absolute top-1 right-1 opacity-0 group-focus-within:opacity-100 group-hover:opacity-100">
        <CopyButton text={text} />
      </div>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: it scrolls, so it must be reachable by keyboard */}
      <pre className="overflow-x-auto p-2.5 font-mono text-xs leading-5" tabIndex={0}>
        <code>
          {lines ? (
            lines.map((line, number) => <Line key={`${number}:${line.length}`} tokens={line} />)
          ) : (
            <VisibleText text={text} />
          )}
        </code>
      </pre>
    </div>
  );
}

export function Line({ tokens }: { tokens: Token[] }) {
  return (
    <>
      {tokens.map(([kind, text], index) => (
        <span key={index} className={kind ? `hl-${kind}` : undefined}>
          <VisibleText text={text} />
        </span>
      ))}
      {"\n"}
    </>
  );
}

export function CopyButton({ text, label = "Copy" }: { text: string | (() => string); label?: string }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    if (!(await copyText(typeof text === "string" ? text : text()))) return;
    setDone(true);
    setTimeout(() => setDone(false), 1500);
  };
  return (
    <IconButton label={done ? "Copied" : label} size="sm" onClick={copy}>
      {done ? <Check className="size-3.5 text-ok" aria-hidden /> : <Copy className="size-3.5" aria-hidden />}
    </IconButton>
  );
}
