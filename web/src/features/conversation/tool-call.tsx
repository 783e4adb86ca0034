import {
  Ban,
  Brain,
  Check,
  CircleDashed,
  CircleX,
  FilePen,
  FileText,
  FolderInput,
  Globe,
  LoaderCircle,
  type LucideIcon,
  Search,
  Shuffle,
  Terminal,
  Trash2,
  Wrench,
} from "lucide-react";
import type { Ask, Message } from "@/api/types";
import { markHidden } from "@/lib/hidden-characters";
import { Code } from "@/ui/code";
import { Markdown, MarkdownBudget } from "@/ui/markdown";
import { VisibleText } from "@/ui/visible-text";
import { FileChange } from "./file-change";
import { Fold } from "./fold";
import {
  commandOf,
  formatValue,
  recordOrEmpty,
  shortPath,
  type ToolCall,
  textOrEmpty,
  toolCallOf,
} from "./message-parts";
import { Output } from "./terminal-output";

const ICONS: Record<string, LucideIcon> = {
  read: FileText,
  edit: FilePen,
  delete: Trash2,
  move: FolderInput,
  search: Search,
  execute: Terminal,
  think: Brain,
  fetch: Globe,
  switch_mode: Shuffle,
};

/** A tool call as one line that expands to its details. `live`: the turn has not ended. `allowed`: allowed by the project's policy. */
export function ToolCallRow({
  message,
  live,
  allowed,
}: {
  message: Message;
  live: boolean;
  allowed?: Ask | undefined;
}) {
  const call = toolCallOf(recordOrEmpty(message.parts[0]));
  const Icon = ICONS[call.kind] ?? Wrench;
  const place = call.locations[0];
  const title = call.title || call.kind;
  const reason = textOrEmpty(allowed?.detail.reason);
  return (
    <Fold
      id={message.id}
      head={
        <>
          <Icon className="size-3.5 shrink-0 text-faint" aria-hidden />
          <span className={call.kind === "execute" ? "min-w-0 truncate font-mono text-xs" : "min-w-0 truncate"}>
            <VisibleText text={title} />
          </span>
          {place && !title.includes(shortPath(place.path)) && (
            <span className="hidden min-w-0 shrink truncate font-mono text-xs text-faint sm:inline">
              <VisibleText text={shortPath(place.path)} />
              {place.line !== null && `:${place.line}`}
            </span>
          )}
          <span className="ml-auto flex shrink-0 items-center gap-2">
            <CallState status={call.status} live={live} />
          </span>
        </>
      }
      more={() => (
        <div className="ml-5 flex flex-col gap-2 border-l py-1.5 pl-3">
          <CallDetails call={call} />
          {allowed && <p className="text-xs text-soft">Allowed by the project's policy{reason && `: ${reason}`}</p>}
        </div>
      )}
    />
  );
}

function CallState({ status, live }: { status: string; live: boolean }) {
  if (status === "completed") return <Check className="size-3.5 text-ok" role="img" aria-label="Done" />;
  if (status === "failed") return <CircleX className="size-3.5 text-bad" role="img" aria-label="Failed" />;
  if (status === "cancelled") return <Ban className="size-3.5 text-faint" role="img" aria-label="Cancelled" />;
  if (!live) return <CircleDashed className="size-3.5 text-faint" role="img" aria-label="Not finished" />;
  if (status === "pending") return <CircleDashed className="size-3.5 text-faint" role="img" aria-label="Not started" />;
  return <LoaderCircle className="size-3.5 animate-spin text-info" role="img" aria-label="Running" />;
}

/** The details of a tool call. Also used for permission requests. */
export function CallDetails({ call }: { call: ToolCall }) {
  const command = commandOf(call);
  const given = command === null ? call.input : withoutCommand(call.input);
  const shown =
    call.content.some((callContent) => callContent.type === "text" && callContent.text.trim()) ||
    call.content.some((callContent) => callContent.type === "diff");
  return (
    <>
      {call.locations.length > 1 && (
        <ul className="font-mono text-xs text-soft">
          {call.locations.map((place) => (
            <li key={`${place.path}:${place.line}`} className="truncate">
              <VisibleText text={shortPath(place.path)} />
              {place.line !== null && `:${place.line}`}
            </li>
          ))}
        </ul>
      )}
      {command !== null && (
        <Labelled label="Command">
          <Code text={command} language="bash" />
        </Labelled>
      )}
      {isNotEmpty(given) && (
        <Labelled label="Input">
          <Code text={formatValue(given)} language={typeof given === "string" ? undefined : "json"} />
        </Labelled>
      )}
      <MarkdownBudget texts={call.content.map((content) => (content.type === "text" ? markHidden(content.text) : ""))}>
        {call.content.map((callContent, index) => {
          const key = `${callContent.type}:${index}`;
          if (callContent.type === "diff")
            return (
              <FileChange key={key} path={callContent.path} before={callContent.oldText} after={callContent.newText} />
            );
          if (callContent.type === "terminal") {
            return (
              <p key={key} className="text-xs text-soft">
                Ran in the agent's own terminal ({callContent.id}).
              </p>
            );
          }
          if (!callContent.text.trim()) return null;
          return call.kind === "execute" ? (
            <Output key={key} text={removeFence(callContent.text)} label={`Output of ${call.title}`} />
          ) : (
            <div key={key} className="text-[13px]">
              <Markdown text={markHidden(callContent.text)} />
            </div>
          );
        })}
      </MarkdownBudget>
      {isNotEmpty(call.output) && !shown && (
        <Labelled label="Output">
          <Output text={formatValue(call.output)} label={`Output of ${call.title}`} />
        </Labelled>
      )}
      {call.cut && <p className="text-xs text-faint">Loading the rest…</p>}
    </>
  );
}

function Labelled({ label, children }: { label: string; children: React.ReactNode }) {
  return (
    <div>
      <div className="text-2xs font-medium text-faint">{label}</div>
      {children}
    </div>
  );
}

/** Return the input of a command without the command itself. */
function withoutCommand(input: unknown): unknown {
  const { command: _, ...others } = recordOrEmpty(input);
  return others;
}

function isNotEmpty(value: unknown): boolean {
  if (value === null || value === undefined || value === "") return false;
  return typeof value !== "object" || Object.keys(value as object).length > 0;
}

/** Remove the code fence that some agents put around a command's output. */
function removeFence(text: string): string {
  return /^```[\w-]*\n([\s\S]*?)\n?```\s*$/.exec(text)?.[1] ?? text;
}
