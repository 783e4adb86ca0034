/** The facts that a card shows about its task. */
import type { Agent, Attempt, Project, TaskCard, User } from "@/api/types";
import { ATTEMPTS, STEPS, type StatusLabel } from "./status-labels";

const STATUS_ORDER: readonly Attempt["status"][] = [
  "running",
  "queued",
  "ready",
  "in_review",
  "merged",
  "failed",
  "cancelled",
  "archived",
];

const BEFORE_WORK: readonly string[] = ["setup", "provision", "checkout"];

/** Return the attempt that represents the task: a running one first, then by result; the newest among equals. */
export function leadingAttempt(task: TaskCard): Attempt | undefined {
  let found: Attempt | undefined;
  for (const attempt of task.attempts) {
    if (!found || STATUS_ORDER.indexOf(attempt.status) <= STATUS_ORDER.indexOf(found.status)) found = attempt;
  }
  return found;
}

/** Return the attempts of the latest start, without archived ones of earlier starts. */
export function currentAttempts(task: TaskCard): Attempt[] {
  return task.attempts.filter((attempt) => attempt.status !== "archived");
}

export const isAtWork = (attempt: Attempt): boolean => attempt.status === "running" || attempt.status === "queued";
/** Whether the attempt is starting and its repository is not checked out yet. */
export const lacksCheckout = (attempt: Attempt): boolean =>
  isAtWork(attempt) &&
  (attempt.step === null || BEFORE_WORK.includes(attempt.step)) &&
  !attempt.steps?.some((step) => step.name === "checkout" && step.status === "completed");
export const isRunning = (task: TaskCard): boolean => task.attempts.some(isAtWork);
export const hasFailed = (task: TaskCard): boolean =>
  Boolean(task.error) ||
  (!isRunning(task) && task.status === "in_progress" && leadingAttempt(task)?.status === "failed");
/** Whether a user stopped the agent, so that the attempt is not a real failure. */
export const wasStopped = (attempt: Attempt | undefined): boolean =>
  attempt?.status === "failed" && attempt.errorCode === "cancelled";
/** Return how many of these cards count as failed only because a user stopped them. */
export const countStopped = (tasks: readonly TaskCard[]): number =>
  tasks.filter((task) => hasFailed(task) && wasStopped(leadingAttempt(task))).length;
export const attemptStatus = (attempt: Attempt): StatusLabel =>
  ATTEMPTS[wasStopped(attempt) ? "cancelled" : attempt.status];

/** Return the users on whose behalf the task starts automatically, or its attempts work or can be continued. */
export function usersItRunsFor(task: TaskCard): Set<string> {
  const startsOver = task.status === "backlog" || task.status === "done";
  const continuing = currentAttempts(task).filter((attempt) =>
    startsOver ? isAtWork(attempt) : attempt.status !== "merged",
  );
  return new Set([...continuing.map((attempt) => attempt.ownerId), ...(task.startsFor ? [task.startsFor] : [])]);
}

/** Whether the user may change what the task does: it runs on behalf of nobody else, or the user may do so anyway. */
export const mayChangeWork = (task: TaskCard, user: User | undefined, project: Project | undefined): boolean =>
  user?.role === "admin" || project?.ownerId === user?.id || [...usersItRunsFor(task)].every((id) => id === user?.id);

/** Return the number of attempts that are ready to be picked. */
export function countReadyAttempts(task: TaskCard): number {
  if (task.status !== "in_review" || isRunning(task)) return 0;
  return task.attempts.filter((attempt) => attempt.status === "ready").length;
}

/** Whether a user has to act. `asked`: the sessions with a pending question or permission request. */
export function needsPerson(task: TaskCard, asked: ReadonlySet<string>): boolean {
  return (
    task.attempts.some((attempt) => isAtWork(attempt) && asked.has(attempt.sessionId ?? "")) ||
    countReadyAttempts(task) > 0
  );
}

/** Return the status of a task; null if the column already says it. `queuePosition` may be newer than the card's own. */
export function taskStatus(task: TaskCard, queuePosition = task.queuePosition): StatusLabel | null {
  const attempt = leadingAttempt(task);
  if (attempt && isAtWork(attempt)) return workStatus(attempt, queuePosition);
  if (hasFailed(task)) return ATTEMPTS[wasStopped(attempt) ? "cancelled" : "failed"];
  if (task.status === "backlog") {
    if (task.startError) return { text: "Not started", tone: "warn" };
    if (task.blockedBy.length) return { text: task.startWhenReady ? "Starts when unblocked" : "Blocked", tone: "warn" };
    return task.startWhenReady ? { text: "Starts when a slot is free", tone: "info" } : null;
  }
  const ready = countReadyAttempts(task);
  if (ready) return { text: ready > 1 ? `Pick one of ${ready}` : "Pick attempt", tone: "accent" };
  if (attempt?.status === "in_review" && task.status === "in_review") return null;
  return attempt && task.status !== "done" && attempt.status !== "archived" ? ATTEMPTS[attempt.status] : null;
}

function workStatus(attempt: Attempt, queuePosition: number | null): StatusLabel {
  if (attempt.stopping) return { text: "Stopping", tone: "idle", busy: true };
  if (attempt.status === "queued") {
    return {
      text: queuePosition ? `Queued, ${queuePosition === 1 ? "next" : `position ${queuePosition}`}` : "Queued",
      tone: "idle",
    };
  }
  return { text: describeActivity(attempt), tone: "info", busy: true };
}

/** Return what a running attempt does, such as “Installing OpenCode (first time only)”. */
export function describeActivity(attempt: Attempt): string {
  const detail = attempt.stepDetail;
  if (detail) return detail.charAt(0).toUpperCase() + detail.slice(1);
  return (attempt.step && STEPS[attempt.step]) || "Running";
}

/** Return the round number. Rounds that ended before the agent started are not counted. */
export function roundOf(attempt: Attempt): number {
  if (!attempt.steps) return attempt.round;
  const worked = new Set(attempt.steps.filter((step) => step.name === "agent").map((step) => step.round));
  return worked.add(attempt.round).size;
}

/** Return the agent that works or will work on the task; null if it is not known yet. */
export function agentOf(task: TaskCard, project: Project | undefined): string | null {
  return leadingAttempt(task)?.agent ?? task.wanted[0]?.agent ?? task.agent ?? project?.defaultAgent ?? null;
}

/** Return the agent that a retry switches to; null if the same agent continues, or if there are several attempts. */
export function nextAgent(task: TaskCard, project: Project | undefined): string | null {
  const rows = currentAttempts(task);
  if (rows.length !== 1 || task.wanted.length > 1) return null;
  const wanted = task.wanted[0]?.agent ?? task.agent ?? project?.defaultAgent;
  return wanted && wanted !== rows[0]?.agent ? wanted : null;
}

export function modelOf(task: TaskCard): string | null {
  return leadingAttempt(task)?.model ?? task.wanted[0]?.model ?? task.model ?? null;
}

/** Return a title that marks demo agents as such. */
export function agentTitle(agent: Agent): string {
  return agent.demo && !/demo/i.test(agent.title) ? `${agent.title} (demo)` : agent.title;
}

/**
 * Return what all attempts spent on models; null if no model was called. `hasUnpriced`: some calls have no known price. `estimated`: the
 * cost of some calls is an estimate.
 */
export function spentOn(task: TaskCard): { usd: number; hasUnpriced: boolean; estimated: boolean } | null {
  let [usd, hasUnpriced, estimated, calls] = [0, false, false, 0];
  for (const { spent } of task.attempts) {
    usd += spent.costUsd ?? 0;
    calls += spent.calls;
    hasUnpriced ||= spent.costUsd === null || spent.unpriced > 0;
    estimated ||= spent.estimated > 0;
  }
  return calls ? { usd, hasUnpriced, estimated } : null;
}

/** Return the attempt whose working time a card shows; null if none has started. */
export function timedAttempt(task: TaskCard): Attempt | null {
  const attempt = leadingAttempt(task);
  return attempt?.seconds == null ? null : attempt;
}
