/** The parts of messages as this page understands them. What agents send is read with care: what is not as it should be is left out. */
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
  /** Some of it is still to be read. */
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

export const record = (value: unknown): Record<string, unknown> =>
  typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Record<string, unknown>) : {};
export const list = (value: unknown): unknown[] => (Array.isArray(value) ? value : []);
export const words = (value: unknown): string => (typeof value === "string" ? value : "");
const number = (value: unknown): number | null => (typeof value === "number" ? value : null);

/** What a message says, for one of text. */
export function saidBy(message: Message): string {
  return message.parts
    .filter((part) => part.type === "text")
    .map((part) => words(part.text))
    .join("\n\n");
}

export function planOf(part: Part): PlanEntry[] {
  return list(part.entries).map((one) => ({ content: words(record(one).content), status: words(record(one).status) }));
}

/** Of a message's part, or of a tool call as an agent names it when it asks for leave. */
export function toolCallOf(part: Record<string, unknown>): ToolCall {
  return {
    id: words(part.toolCallId),
    title: words(part.title),
    kind: words(part.kind) || "other",
    status: words(part.status) || "pending",
    locations: list(part.locations).flatMap((one) => {
      const { path, line } = record(one);
      return typeof path === "string" && path ? [{ path, line: number(line) }] : [];
    }),
    content: list(part.content).flatMap((one) => contentOf(record(one))),
    input: part.input ?? part.rawInput ?? null,
    output: part.output ?? part.rawOutput ?? null,
    cut: part.cut === true,
  };
}

function contentOf(one: Record<string, unknown>): CallContent[] {
  if (one.type === "text") return [{ type: "text", text: words(one.text) }];
  if (one.type === "content") return contentOf(record(one.content)); // as the protocol has it
  if (one.type === "terminal") return [{ type: "terminal", id: words(one.terminalId) }];
  if (one.type === "diff" && typeof one.path === "string" && typeof one.newText === "string") {
    return [
      {
        type: "diff",
        path: one.path,
        oldText: typeof one.oldText === "string" ? one.oldText : null,
        newText: one.newText,
      },
    ];
  }
  return [];
}

export function feedbackOf(part: Part): Feedback {
  return {
    kind: words(part.kind),
    author: words(part.author),
    text: words(part.text),
    path: words(part.path) || null,
    line: number(part.line),
    url: words(part.url) || null,
    state: words(part.state) || null,
  };
}

/** The command of a tool call that runs one. */
export function commandOf(call: ToolCall): string | null {
  const command = record(call.input).command;
  if (typeof command === "string") return command;
  return Array.isArray(command) && command.every((one) => typeof one === "string") ? command.join(" ") : null;
}

/**
 * A call as it is shown below a title that may be its command: each thing once. Codex repeats the command in its text, with the names of the
 * decisions for which there are buttons.
 */
export function withoutRepeats(call: ToolCall, title: string): ToolCall {
  const command = commandOf(call);
  const input = { ...record(call.input) };
  if (command !== null) {
    if (plainWords(command) === plainWords(title)) delete input.command;
    if (`${words(input.cwd)}/` === FOLDER) delete input.cwd;
  }
  const content = call.content.flatMap((one): CallContent[] => {
    if (one.type !== "text") return [one];
    const text = (one.text.split(/^Available Decisions:/m)[0] ?? "").trim();
    const repeats = plainWords(text).includes(plainWords(command ?? title)) && /requires approval/i.test(text);
    return text && !repeats ? [{ ...one, text }] : [];
  });
  return { ...call, input: command === null ? call.input : input, content };
}

/** Words alone, whatever quotes and spaces are around them. */
const plainWords = (text: string): string => text.replace(/[`'"\\\s]+/g, " ").trim();

/** As people read it: text stays text, the rest becomes JSON. */
export function shownValue(value: unknown): string {
  return typeof value === "string" ? value : JSON.stringify(value, null, 2);
}

/** Where a session's checkout is in its sandbox. */
const FOLDER = "/home/user/workspace/";

/** A path without the folder that all of a session's work is in. */
export function shortPath(path: string): string {
  return path.startsWith(FOLDER) ? path.slice(FOLDER.length) : path;
}
