/** The rows of a conversation: messages grouped by turn, questions and permission requests, and how each turn ended. Pure. */
import type { Ask, Message, Turn } from "@/api/types";
import { recordOrEmpty, textOrEmpty } from "./message-parts";
import { isAllowedByPolicy, isDenied } from "./policy-denials";

export type Row =
  | { key: string; kind: "message"; message: Message; writing: boolean; allowed?: Ask | undefined }
  | { key: string; kind: "ask"; ask: Ask }
  | { key: string; kind: "turn"; turn: Turn; denied: boolean };

const OPEN = new Set<Turn["status"]>(["queued", "running", "waiting"]);
export const isOpen = (turn: Turn): boolean => OPEN.has(turn.status);

/**
 * Build the rows. Queued prompts are omitted; a prompt that was written while the agent was busy is placed before its answer. `turns` and
 * `asks` may be in any order. A turn's end follows the last of its messages, even if it has none. What the project's policy allowed is
 * attached to its tool call. `denied` marks the end of a turn in which permission was denied.
 */
export function rowsOf(
  messages: readonly Message[],
  turns: readonly Turn[],
  asks: readonly Ask[],
  more: boolean,
): Row[] {
  const byId = new Map(turns.map((turn) => [turn.id, turn]));
  const rows: Row[] = [];
  const first = messages[0]?.createdAt;
  const calls = new Set(messages.map(callOf).filter(Boolean));
  const allowed = new Map<string, Ask>();
  for (const ask of asks) {
    const call = `${ask.turnId} ${textOrEmpty(recordOrEmpty(ask.detail.toolCall).toolCallId)}`;
    if (calls.has(call) && isAllowedByPolicy(ask)) allowed.set(call, ask);
  }
  const told = new Set(allowed.values());
  const deniedIn = new Set(asks.filter(isDenied).map((ask) => ask.turnId));
  const pending = asks
    .filter((ask) => !told.has(ask))
    .filter((ask) => !more || !first || ask.createdAt >= first) // The others belong to messages that are not loaded.
    .sort((one, other) => (one.id < other.id ? -1 : 1));
  const sorted = byTurn(messages.filter((message) => !isQueued(message, byId) && !isRepeated(message, byId)));
  const running = turns.find((turn) => turn.status === "running" || turn.status === "waiting");

  let current: string | null = null;
  const addAsks = (turnId: string | null, until?: string) => {
    for (let at = 0; at < pending.length; ) {
      const ask = pending[at] as Ask;
      const due = until === undefined ? ask.turnId !== null : ask.createdAt < until; // Without a turn, only the time counts.
      if ((ask.turnId === turnId || ask.turnId === null) && due) {
        rows.push({ key: ask.id, kind: "ask", ask });
        pending.splice(at, 1);
      } else at += 1;
    }
  };
  const end = (turnId: string | null) => {
    addAsks(turnId);
    const turn = turnId ? byId.get(turnId) : undefined;
    if (turn && !isOpen(turn)) rows.push({ key: turn.id, kind: "turn", turn, denied: deniedIn.has(turn.id) });
  };

  sorted.forEach((message, index) => {
    if (message.turnId && message.turnId !== current) {
      if (current) end(current);
      current = message.turnId;
    }
    addAsks(current, message.createdAt);
    const last = index === sorted.length - 1;
    rows.push({
      key: message.id,
      kind: "message",
      message,
      writing: last && message.role === "agent" && running?.id === message.turnId,
      allowed: allowed.get(callOf(message) ?? ""),
    });
  });
  if (current) end(current);
  for (const ask of pending) rows.push({ key: ask.id, kind: "ask", ask });
  return rows;
}

/** Return a key for the tool call in a message, unique within the session; null if there is none. */
function callOf(message: Message): string | null {
  const part = message.parts[0];
  return part?.type === "tool_call" ? `${message.turnId} ${textOrEmpty(part.toolCallId)}` : null;
}

/** Sort messages by turn. Ids of turns and messages increase over time. A message without a turn stays after the one it followed. */
function byTurn(messages: Message[]): Message[] {
  let agent = "";
  const keyed = messages.map((message) => {
    if (message.turnId && (message.role !== "user" || !agent)) agent = message.turnId;
    return { message, turn: message.turnId ?? agent };
  });
  keyed.sort((one, other) =>
    one.turn === other.turn ? (one.message.id < other.message.id ? -1 : 1) : one.turn < other.turn ? -1 : 1,
  );
  return keyed.map((entry) => entry.message);
}

function isQueued(message: Message, turns: Map<string, Turn>): boolean {
  const turn = message.role === "user" && message.turnId ? turns.get(message.turnId) : undefined;
  return turn?.status === "queued";
}

/** Whether a system notice only repeats the error that the turn's end shows. */
function isRepeated(message: Message, turns: Map<string, Turn>): boolean {
  const part = message.parts[0];
  if (message.role !== "system" || part?.type !== "notice" || !message.turnId) return false;
  return turns.get(message.turnId)?.error === part.text;
}

/** Return the newest plan of the current turn, or of the last one. */
export function latestPlan(messages: readonly Message[]): Message | undefined {
  const turn = messages[messages.length - 1]?.turnId;
  for (let at = messages.length - 1; at >= 0; at -= 1) {
    const message = messages[at] as Message;
    if (message.parts[0]?.type === "plan") return message.turnId === turn ? message : undefined;
    if (message.turnId && message.turnId !== turn) return undefined;
  }
  return undefined;
}

export interface TurnNumbers {
  tokens: number | null;
  costUsd: number | null;
  /** The cost contains an estimate, such as that of a request that was stopped. */
  estimated: boolean;
}

/** Return token and cost numbers as counted by the platform, else as reported by the agent. */
export function numbersOf(turn: Turn): TurnNumbers {
  const models = recordOrEmpty(turn.usage.models);
  const agent = recordOrEmpty(turn.usage.agent);
  const context = recordOrEmpty(turn.usage.context);
  const sum = (usage: Record<string, unknown>, names: string[]) =>
    names.reduce((all, name) => all + (Number(usage[name]) || 0), 0);
  const counted = sum(models, ["inputTokens", "outputTokens"]);
  const said = Number(agent.totalTokens) || sum(agent, ["inputTokens", "outputTokens"]);
  const price = recordOrEmpty(context.cost);
  const cost =
    typeof models.costUsd === "number" && models.calls
      ? models.costUsd
      : textOrEmpty(price.currency) === "USD"
        ? Number(price.amount) || null
        : null;
  return { tokens: counted || said || null, costUsd: cost, estimated: cost !== null && Number(models.estimated) > 0 };
}

const ADVICE: Record<string, string> = {
  agent_died: "Retry to start a new agent process. It gets the conversation so far.",
  sandbox_restarted: "The sandbox was restarted and its files were kept. Retry: the agent continues from them.",
  agent_silent: "Check on the Agents page that the agent's command supports ACP.",
  agent_protocol:
    "The agent uses a version of ACP that this platform does not support. Change the agent's version on the Agents page.",
  agent_too_loud: "The agent produced more output than can be stored. Ask for less at a time.",
  agent_gave_up: "Tell the agent how to continue, or allow more in the project's settings.",
  agent_refused: "Rephrase the message, or try another model.",
  agent_failed: "Retry, or try another model.",
  over_budget: "",
  sandbox_destroyed: "The agent needs a new sandbox. Start one, then send the message again.",
  checkout_failed: "Check the project's repository and credentials, then retry.",
  no_agent: "Choose an agent for the session, or set the project's default.",
  no_model: "Add a key for a model provider, then retry.",
  model_key_refused: "Enter another key in the model provider's settings, then retry.",
  model_quota_exceeded: "Then retry.",
  model_busy: "Retry later, or use another model.",
  model_unknown: "Choose another model, or change the provider's list of models.",
  model_address_wrong: "Check the address in the model provider's settings.",
  model_unreachable: "Check the address in the model provider's settings, and that the provider is running.",
  tunnel_failed: "Retry, or start a new session if it fails again.",
  model_failed: "Retry, or use another model.",
};

/** Return what a user can do about a failed turn; empty if the error already says it. */
export function adviceFor(code: string | null): string {
  const known = code ? ADVICE[code] : undefined;
  return known ?? "Retry. If it fails again, check the sandbox's output and the platform's log.";
}
