import { Bot, Brain, GitPullRequest, Image, Info, MessageSquare, TriangleAlert, User } from "lucide-react";
import { useEffect, useRef, useState } from "react";
import type { Message, Turn } from "@/api/types";
import { formatBytes } from "@/lib/format";
import { sanitizeHref } from "@/lib/links";
import { Markdown } from "@/ui/markdown";
import { PlainText } from "@/ui/plain-text";
import { Ago } from "@/ui/time";
import { Fold, useFold } from "./fold";
import { feedbackOf, listOrEmpty, recordOrEmpty, textOrEmpty } from "./message-parts";
import { useName } from "./user-names";

const LINES = 14;
/** The `source` of text that the platform added to a prompt. */
const PLATFORM = "platform";
const ORIGINS: Record<Turn["origin"], string | null> = {
  person: null,
  task: "Task",
  verify: "Verify command",
  feedback: "Feedback",
  test: "Agent test",
};

/** A prompt as it was written; a long one is shortened until the user expands it. */
export function PromptRow({ message, origin }: { message: Message; origin: Turn["origin"] | undefined }) {
  const name = useName();
  const texts = message.parts.filter((part) => part.type === "text");
  const written = texts.filter((part) => part.source !== PLATFORM);
  const shown = written.length ? written : texts.slice(0, 1);
  const others = texts.filter((part) => !shown.includes(part));
  // A retry starts with the platform's text, followed by the user's.
  const own = written.length > 0 && texts[0] !== written[0];
  // The turn is not loaded yet; it says who sent the prompt.
  const unknown = message.turnId !== null && origin === undefined;
  const who = unknown ? "" : (!own && origin && ORIGINS[origin]) || name(message.authorId);
  return (
    <article className="rounded-lg border bg-accent-soft/60 px-3 py-2" aria-label={who ? `Prompt: ${who}` : "Prompt"}>
      <Who icon={<User className="size-3.5" aria-hidden />} who={who} at={message.createdAt} />
      <Prompt id={`${message.id}:all`} text={shown.map((part) => textOrEmpty(part.text)).join("\n\n")} />
      {others.length > 0 && (
        <Fold
          id={`${message.id}:more`}
          className="-mx-1.5 mt-1"
          head={<span className="text-xs text-soft">Additional instructions</span>}
          more={() => (
            <div className="px-6 pb-1 text-xs text-soft">
              <PlainText text={others.map((part) => textOrEmpty(part.text)).join("\n\n")} />
            </div>
          )}
        />
      )}
    </article>
  );
}

function Prompt({ id, text }: { id: string; text: string }) {
  const [whole, setWhole] = useFold(id);
  const lines = text.split("\n");
  const long = lines.length > LINES || text.length > 2000;
  const shown = whole || !long ? text : lines.slice(0, LINES).join("\n").slice(0, 2000);
  return (
    <div className="text-[13px]">
      <PlainText text={shown} />
      {long && (
        <button
          type="button"
          className="text-xs text-accent underline"
          aria-expanded={whole}
          onClick={() => setWhole(!whole)}
        >
          {whole ? "Show less" : "Show all"}
        </button>
      )}
    </div>
  );
}

export function TextRow({ text, writing }: { text: string; writing: boolean }) {
  const shown = useThrottledText(text, writing);
  return (
    <div className="flex gap-2.5">
      <Bot className="mt-0.5 hidden size-4 shrink-0 text-faint sm:block" aria-hidden />
      <div className="min-w-0 flex-1 text-[13.5px] leading-relaxed [&_p]:whitespace-pre-line">
        <Markdown text={shown} />
      </div>
    </div>
  );
}

export function ThoughtRow({ id, text, writing }: { id: string; text: string; writing: boolean }) {
  const shown = useThrottledText(text, writing);
  const glimpse = (writing ? text.trim().split("\n").pop() : text.trim().split("\n")[0]) ?? "";
  return (
    <Fold
      id={id}
      head={
        <>
          <Brain className="size-3.5 shrink-0 text-faint" aria-hidden />
          <span className="shrink-0 text-soft">{writing ? "Thinking" : "Thought"}</span>
          <span className="min-w-0 truncate text-faint">{glimpse.slice(0, 200)}</span>
        </>
      }
      more={() => (
        <div className="ml-5 border-l py-1 pl-3 text-[13px] text-soft">
          <Markdown text={shown} />
        </div>
      )}
    />
  );
}

/** Throttle rendering of a growing text: the longer it is, the less often it is rendered. */
function useThrottledText(text: string, writing: boolean): string {
  const [shown, setShown] = useState(text);
  const newest = useRef(text);
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  newest.current = text;
  useEffect(() => {
    if (!writing || timer.current || newest.current === shown) return;
    timer.current = setTimeout(
      () => {
        timer.current = undefined;
        setShown(newest.current);
      },
      Math.min(1500, Math.max(100, text.length / 40)),
    );
  }, [text, writing, shown]);
  useEffect(() => () => clearTimeout(timer.current), []);
  return writing ? shown : text;
}

export function ImageRow({ part }: { part: Record<string, unknown> }) {
  return (
    <p className="flex items-center gap-2 px-1.5 text-[13px] text-soft">
      <Image className="size-3.5 text-faint" aria-hidden />
      The agent sent an image ({textOrEmpty(part.mimeType) || "unknown type"}, {formatBytes(Number(part.bytes) || 0)}).
      Images are not stored.
    </p>
  );
}

/** Messages from neither a user nor the agent: feedback from the pull request, and notices of the platform. */
export function SystemRow({ message }: { message: Message }) {
  return (
    <div className="flex flex-col gap-2">
      {message.parts.map((part, index) => (
        <SystemPart key={index} part={part} at={message.createdAt} />
      ))}
    </div>
  );
}

function SystemPart({ part, at }: { part: Message["parts"][number]; at: string }) {
  if (part.type === "feedback") return <FeedbackCard part={part} at={at} />;
  if (part.type === "conflicts") {
    return (
      <div className="rounded-md border border-line-strong bg-warn-soft px-3 py-2 text-[13px]">
        <Who icon={<TriangleAlert className="size-3.5 text-warn" aria-hidden />} who="Conflicts" at={at} />
        <p>A merge stopped because of conflicts. The agent was asked to resolve them:</p>
        <ul className="mt-1 font-mono text-xs">
          {listOrEmpty(part.files).map((file) => {
            const path = textOrEmpty(recordOrEmpty(file).path) || textOrEmpty(file);
            return <li key={path}>{path}</li>;
          })}
        </ul>
      </div>
    );
  }
  return (
    <div className="flex items-start gap-2 rounded-md bg-idle-soft px-3 py-2 text-[13px] text-soft">
      <Info className="mt-0.5 size-3.5 shrink-0" aria-hidden />
      <PlainText text={textOrEmpty(part.text) || "Notice from the platform."} />
    </div>
  );
}

const SAYS: Record<string, string> = {
  review: "reviewed",
  comment: "commented",
  line_comment: "commented",
  check: "check failed",
};

function FeedbackCard({ part, at }: { part: Message["parts"][number]; at: string }) {
  const said = feedbackOf(part);
  const href = sanitizeHref(said.url ?? undefined);
  const who = `${said.author || "Someone"} ${SAYS[said.kind] ?? "commented"}`;
  const Icon = said.kind === "check" ? TriangleAlert : said.kind === "review" ? GitPullRequest : MessageSquare;
  return (
    <article className="rounded-md border bg-info-soft px-3 py-2" aria-label={`From the pull request: ${who}`}>
      <Who icon={<Icon className="size-3.5 text-info" aria-hidden />} who={who} at={at} />
      {said.path && (
        <p className="font-mono text-xs text-soft">
          {said.path}
          {said.line !== null && `:${said.line}`}
        </p>
      )}
      <div className="text-[13px]">
        <Markdown text={said.text || "(no text)"} />
      </div>
      {href && (
        <a href={href} target="_blank" rel="noreferrer noopener" className="text-xs text-accent underline">
          View on the forge
        </a>
      )}
    </article>
  );
}

function Who({ icon, who, at }: { icon: React.ReactNode; who: string; at: string }) {
  return (
    <div className="mb-0.5 flex items-center gap-1.5 text-xs text-soft">
      {icon}
      <span className="min-w-0 truncate font-medium">{who}</span>
      <Ago at={at} className="ml-auto shrink-0 text-faint" />
    </div>
  );
}
