/** What a conversation shows, line by line: messages by their turn, what was asked, and how each turn ended. Pure. */
import type { Ask, Message, Turn } from "@/api/types";
import { record, words } from "./parts";
import { isAllowedByPolicy } from "./refused";

export type Row =
  | { key: string; kind: "message"; message: Message; writing: boolean; allowed?: Ask | undefined }
  | { key: string; kind: "ask"; ask: Ask }
  | { key: string; kind: "turn"; turn: Turn };

const OPEN = new Set<Turn["status"]>(["queued", "running", "waiting"]);
export const isOpen = (turn: Turn): boolean => OPEN.has(turn.status);

/**
 * Prompts that wait are not among them; one that was written while the agent was busy stands before the answer to it. `turns` and
 * `asks` in any order. A turn's end is shown behind the last of its messages, also of one that has none. What the project's policy has
 * allowed is told with its tool call.
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
    const call = `${ask.turnId} ${words(record(ask.detail.toolCall).toolCallId)}`;
    if (calls.has(call) && isAllowedByPolicy(ask)) allowed.set(call, ask);
  }
  const told = new Set(allowed.values());
  const pending = asks
    .filter((ask) => !told.has(ask))
    .filter((ask) => !more || !first || ask.createdAt >= first) // others belong to what is not loaded
    .sort((one, other) => (one.id < other.id ? -1 : 1));
  const sorted = byTurn(messages.filter((one) => !waits(one, byId) && !isRepeated(one, byId)));
  const running = turns.find((turn) => turn.status === "running" || turn.status === "waiting");

  let current: string | null = null;
  const asked = (turnId: string | null, until?: string) => {
    for (let at = 0; at < pending.length; ) {
      const ask = pending[at] as Ask;
      const due = until === undefined ? ask.turnId !== null : ask.createdAt < until; // one of no turn: by its time alone
      if ((ask.turnId === turnId || ask.turnId === null) && due) {
        rows.push({ key: ask.id, kind: "ask", ask });
        pending.splice(at, 1);
      } else at += 1;
    }
  };
  const end = (turnId: string | null) => {
    asked(turnId);
    const turn = turnId ? byId.get(turnId) : undefined;
    if (turn && !isOpen(turn)) rows.push({ key: turn.id, kind: "turn", turn });
  };

  sorted.forEach((message, index) => {
    if (message.turnId && message.turnId !== current) {
      if (current) end(current);
      current = message.turnId;
    }
    asked(current, message.createdAt);
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

/** The tool call that a message tells of, in its turn. */
function callOf(message: Message): string | null {
  const part = message.parts[0];
  return part?.type === "tool_call" ? `${message.turnId} ${words(part.toolCallId)}` : null;
}

/** Ids of turns and messages grow with time. What belongs to no turn stays behind what it followed. */
function byTurn(messages: Message[]): Message[] {
  let agent = "";
  const keyed = messages.map((message) => {
    if (message.turnId && (message.role !== "user" || !agent)) agent = message.turnId;
    return { message, turn: message.turnId ?? agent };
  });
  keyed.sort((one, other) =>
    one.turn === other.turn ? (one.message.id < other.message.id ? -1 : 1) : one.turn < other.turn ? -1 : 1,
  );
  return keyed.map((one) => one.message);
}

function waits(message: Message, turns: Map<string, Turn>): boolean {
  const turn = message.role === "user" && message.turnId ? turns.get(message.turnId) : undefined;
  return turn?.status === "queued";
}

/** The platform's word on why a turn failed, which the turn's end says as well. */
function isRepeated(message: Message, turns: Map<string, Turn>): boolean {
  const part = message.parts[0];
  if (message.role !== "system" || part?.type !== "notice" || !message.turnId) return false;
  return turns.get(message.turnId)?.error === part.text;
}

/** The newest plan of the turn that runs, or of the last one. */
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
}

/** Counted by the platform, else as the agent says. */
export function numbersOf(turn: Turn): TurnNumbers {
  const models = record(turn.usage.models);
  const agent = record(turn.usage.agent);
  const context = record(turn.usage.context);
  const sum = (usage: Record<string, unknown>, names: string[]) =>
    names.reduce((all, name) => all + (Number(usage[name]) || 0), 0);
  const counted = sum(models, ["inputTokens", "outputTokens"]);
  const said = Number(agent.totalTokens) || sum(agent, ["inputTokens", "outputTokens"]);
  const price = record(context.cost);
  const cost =
    typeof models.costUsd === "number" && models.calls
      ? models.costUsd
      : words(price.currency) === "USD"
        ? Number(price.amount) || null
        : null;
  return { tokens: counted || said || null, costUsd: cost };
}

const ADVICE: Record<string, string> = {
  agent_died: "Try again: a new process is started, and it is told what was said before.",
  sandbox_restarted: "The sandbox was restarted; its files are there. Try again: the agent continues from them.",
  agent_silent: "Look whether the agent's command speaks ACP, on the page of agents.",
  agent_protocol: "The agent is too old or too new for this platform. Change its version on the page of agents.",
  agent_too_loud: "It has said more than is kept. Ask for less at once.",
  agent_gave_up: "Tell it how to go on, or allow more in the project's settings.",
  agent_refused: "Say it in other words, or try another model.",
  agent_failed: "Try again, or try another model.",
  over_budget: "",
  sandbox_destroyed: "The agent needs a new sandbox: start one, then send the message again.",
  checkout_failed: "Look at the project's repository and credentials, then try again.",
  no_agent: "Choose an agent for the session, or set the project's default.",
  no_model: "Add a key for a model provider, then try again.",
  model_key_refused: "Enter another key in the settings of the model provider, then try again.",
  model_quota_exceeded: "Then try again.",
  model_busy: "Try again later, or use another model.",
  model_unknown: "Choose another model, or change the provider's list of models.",
  model_address_wrong: "Check the address in the settings of the model provider.",
  model_unreachable: "Check the address in the settings of the model provider, and whether it runs.",
  model_failed: "Try again, or use another model.",
};

/** What a person can do about a turn that failed; nothing where the error says it. */
export function adviceFor(code: string | null): string {
  const known = code ? ADVICE[code] : undefined;
  return known ?? "Try again. If it fails once more, the sandbox's output and the platform's log say more.";
}
