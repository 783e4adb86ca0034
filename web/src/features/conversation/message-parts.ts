/** Parse the parts of messages. Agents send untrusted data: malformed values are dropped. */
import type { Message } from "@/api/types";

type Part = Message["parts"][number];

export interface PlanEntry {
  content: string;
  status: string;
}
export type CallContent =
  | { type: "text"; text: string }
  | { type: "diff"; path: string; oldText: string | null; newText: string }
  | { type: "terminal"; id: string };
export interface ToolCall {
  id: string;
  title: string;
  kind: string;
  status: string;
  locations: { path: string; line: number | null }[];
  content: CallContent[];
  input: unknown;
  output: unknown;
  /** The event was truncated: the rest has to be loaded. */
  cut: boolean;
}
export interface Feedback {
  kind: string;
  author: string;
  text: string;
  path: string | null;
  line: number | null;
  url: string | null;
  state: string | null;
}

export const recordOrEmpty = (value: unknown): Record<string, unknown> =>
  typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Record<string, unknown>) : {};
export const listOrEmpty = (value: unknown): unknown[] => (Array.isArray(value) ? value : []);
export const textOrEmpty = (value: unknown): string => (typeof value === "string" ? value : "");
const number = (value: unknown): number | null => (typeof value === "number" ? value : null);

/** Return the text of a message. */
export function messageText(message: Message): string {
  return message.parts
    .filter((part) => part.type === "text")
    .map((part) => textOrEmpty(part.text))
    .join("\n\n");
}

export function planOf(part: Part): PlanEntry[] {
  return listOrEmpty(part.entries).map((entry) => ({
    content: textOrEmpty(recordOrEmpty(entry).content),
    status: textOrEmpty(recordOrEmpty(entry).status),
  }));
}

/** Parse a tool call from a message part or from a permission request. */
export function toolCallOf(part: Record<string, unknown>): ToolCall {
  return {
    id: textOrEmpty(part.toolCallId),
    title: textOrEmpty(part.title),
    kind: textOrEmpty(part.kind) || "other",
    status: textOrEmpty(part.status) || "pending",
    locations: listOrEmpty(part.locations).flatMap((item) => {
      const { path, line } = recordOrEmpty(item);
      return typeof path === "string" && path ? [{ path, line: number(line) }] : [];
    }),
    content: listOrEmpty(part.content).flatMap((block) => contentOf(recordOrEmpty(block))),
    input: part.input ?? part.rawInput ?? null,
    output: part.output ?? part.rawOutput ?? null,
    cut: part.cut === true,
  };
}

function contentOf(record: Record<string, unknown>): CallContent[] {
  if (record.type === "text") return [{ type: "text", text: textOrEmpty(record.text) }];
  if (record.type === "content") return contentOf(recordOrEmpty(record.content)); // ACP nests content blocks
  if (record.type === "terminal") return [{ type: "terminal", id: textOrEmpty(record.terminalId) }];
  if (record.type === "diff" && typeof record.path === "string" && typeof record.newText === "string") {
    return [
      {
        type: "diff",
        path: record.path,
        oldText: typeof record.oldText === "string" ? record.oldText : null,
        newText: record.newText,
      },
    ];
  }
  return [];
}

export function feedbackOf(part: Part): Feedback {
  return {
    kind: textOrEmpty(part.kind),
    author: textOrEmpty(part.author),
    text: textOrEmpty(part.text),
    path: textOrEmpty(part.path) || null,
    line: number(part.line),
    url: textOrEmpty(part.url) || null,
    state: textOrEmpty(part.state) || null,
  };
}

/** The command of a tool call that runs one. */
export function commandOf(call: ToolCall): string | null {
  const command = recordOrEmpty(call.input).command;
  if (typeof command === "string") return command;
  return Array.isArray(command) && command.every((candidate) => typeof candidate === "string")
    ? command.join(" ")
    : null;
}

/**
 * Remove from a call what its title already shows. Codex repeats the command in its text, followed by the names of the decisions that are
 * shown as buttons.
 */
export function withoutRepeats(call: ToolCall, title: string): ToolCall {
  const command = commandOf(call);
  const input = { ...recordOrEmpty(call.input) };
  if (command !== null) {
    if (plainWords(command) === plainWords(title)) delete input.command;
    if (`${textOrEmpty(input.cwd)}/` === FOLDER) delete input.cwd;
  }
  const content = call.content.flatMap((callContent): CallContent[] => {
    if (callContent.type !== "text") return [callContent];
    const text = (callContent.text.split(/^Available Decisions:/m)[0] ?? "").trim();
    const repeats = plainWords(text).includes(plainWords(command ?? title)) && /requires approval/i.test(text);
    return text && !repeats ? [{ ...callContent, text }] : [];
  });
  return { ...call, input: command === null ? call.input : input, content };
}

/** Normalize quotes and whitespace for comparison. */
const plainWords = (text: string): string => text.replace(/[`'"\\\s]+/g, " ").trim();

/** Format a value for display: text as it is, everything else as JSON. */
export function formatValue(value: unknown): string {
  return typeof value === "string" ? value : JSON.stringify(value, null, 2);
}

/** The path of a session's checkout in its sandbox. */
const FOLDER = "/home/user/workspace/";

/** Return a path relative to the session's checkout. */
export function shortPath(path: string): string {
  return path.startsWith(FOLDER) ? path.slice(FOLDER.length) : path;
}
