/** What a card says of its task, in words. */
import type { Agent, Attempt, Project, TaskCard } from "@/api/types";
import { ATTEMPTS, STEPS, type Word } from "@/lib/status";

const TELLING: readonly Attempt["status"][] = [
  "running",
  "queued",
  "ready",
  "in_review",
  "merged",
  "failed",
  "cancelled",
  "archived",
];

/** The attempt that says most about the task: what is at work, then what came of it; of equals the newest. */
export function leading(task: TaskCard): Attempt | undefined {
  let found: Attempt | undefined;
  for (const one of task.attempts) {
    if (!found || TELLING.indexOf(one.status) <= TELLING.indexOf(found.status)) found = one;
  }
  return found;
}

/** Those of the newest start: what was archived with an earlier one is not counted. */
export function current(task: TaskCard): Attempt[] {
  return task.attempts.filter((one) => one.status !== "archived");
}

export const atWork = (attempt: Attempt): boolean => attempt.status === "running" || attempt.status === "queued";
export const running = (task: TaskCard): boolean => task.attempts.some(atWork);
export const hasFailed = (task: TaskCard): boolean =>
  Boolean(task.error) || (!running(task) && task.status === "in_progress" && leading(task)?.status === "failed");
/** A person has stopped its agent: nothing went wrong. */
export const wasStopped = (attempt: Attempt | undefined): boolean =>
  attempt?.status === "failed" && attempt.errorCode === "cancelled";
/** How many of these cards count as failed though nothing went wrong. */
export const countStopped = (tasks: readonly TaskCard[]): number =>
  tasks.filter((task) => hasFailed(task) && wasStopped(leading(task))).length;
export const attemptWord = (attempt: Attempt): Word => ATTEMPTS[wasStopped(attempt) ? "cancelled" : attempt.status];

/** Several are ready and somebody has to choose one. */
export function toPick(task: TaskCard): number {
  if (task.status !== "in_review" || running(task)) return 0;
  return task.attempts.filter((one) => one.status === "ready").length;
}

/** `asked`: the sessions in which a question or a permission waits. */
export function needsPerson(task: TaskCard, asked: ReadonlySet<string>): boolean {
  return task.attempts.some((one) => atWork(one) && asked.has(one.sessionId)) || toPick(task) > 0;
}

/** What happens to it now; null where the column says it all. `place`: in the queue, where somebody knows better than the card. */
export function wordFor(task: TaskCard, place = task.queuePosition): Word | null {
  const attempt = leading(task);
  if (attempt && atWork(attempt)) return workWord(attempt, place);
  if (hasFailed(task)) return ATTEMPTS[wasStopped(attempt) ? "cancelled" : "failed"];
  if (task.status === "backlog") {
    if (task.blockedBy.length) return { text: task.startWhenReady ? "Starts when unblocked" : "Blocked", tone: "warn" };
    return task.startWhenReady ? { text: "Starts when there is room", tone: "info" } : null;
  }
  const ready = toPick(task);
  if (ready) return { text: ready > 1 ? `Pick one of ${ready}` : "Pick it", tone: "accent" };
  if (attempt?.status === "in_review" && task.status === "in_review") return null;
  return attempt && task.status !== "done" && attempt.status !== "archived" ? ATTEMPTS[attempt.status] : null;
}

function workWord(attempt: Attempt, place: number | null): Word {
  if (attempt.stopping) return { text: "Stopping", tone: "idle", busy: true };
  if (attempt.status === "queued") {
    return { text: place ? `In the queue, ${place === 1 ? "next" : `place ${place}`}` : "Queued", tone: "idle" };
  }
  return { text: doingNow(attempt), tone: "info", busy: true };
}

/** What an attempt at work does, such as “Installing OpenCode (first time only)”. */
export function doingNow(attempt: Attempt): string {
  const detail = attempt.stepDetail;
  if (detail) return detail.charAt(0).toUpperCase() + detail.slice(1);
  return (attempt.step && STEPS[attempt.step]) || "Running";
}

/** Which round of the agent's work this is: those that ended before the agent had begun do not count. */
export function roundOf(attempt: Attempt): number {
  if (!attempt.steps) return attempt.round;
  const worked = new Set(attempt.steps.filter((one) => one.name === "agent").map((one) => one.round));
  return worked.add(attempt.round).size;
}

/** The agent that works or would work on it; null: not known yet. */
export function agentOf(task: TaskCard, project: Project | undefined): string | null {
  return leading(task)?.agent ?? task.wanted[0]?.agent ?? task.agent ?? project?.defaultAgent ?? null;
}

/** The agent that a retry hands the task to; null: the one that worked on it goes on, or there are several. */
export function nextAgent(task: TaskCard, project: Project | undefined): string | null {
  const rows = current(task);
  if (rows.length !== 1 || task.wanted.length > 1) return null;
  const wanted = task.wanted[0]?.agent ?? task.agent ?? project?.defaultAgent;
  return wanted && wanted !== rows[0]?.agent ? wanted : null;
}

export function modelOf(task: TaskCard): string | null {
  return leading(task)?.model ?? task.wanted[0]?.model ?? task.model ?? null;
}

/** A name that tells the demo from the real ones. */
export function agentTitle(agent: Agent): string {
  return agent.demo && !/demo/i.test(agent.title) ? `${agent.title} (demo)` : agent.title;
}

/** Spent on models by all its attempts; null where no model was called. `more`: some of it has no known price. */
export function spentOn(task: TaskCard): { usd: number; more: boolean } | null {
  let [usd, more, calls] = [0, false, 0];
  for (const { spent } of task.attempts) {
    usd += spent.costUsd ?? 0;
    calls += spent.calls;
    more ||= spent.costUsd === null || spent.unpriced > 0;
  }
  return calls ? { usd, more } : null;
}

/** The attempt whose time at work a card shows. Null: not begun. */
export function clockOf(task: TaskCard): Attempt | null {
  const attempt = leading(task);
  return attempt?.seconds == null ? null : attempt;
}
