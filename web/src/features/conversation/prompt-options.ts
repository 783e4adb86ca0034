/** Whether a message can be sent to a session's agent now, and what sending it does. Pure. */
import type { Prompt } from "@/api/queries/conversation";
import type { Attempt, Session, Task } from "@/api/types";

/** `round`: the task returns to in progress, and the changes are verified, committed and pushed. `chat`: the agent only gets the message. */
export type Way = "round" | "chat";

export interface PromptOptions {
  ways: Way[];
  /** Why no message can be sent; undefined if one can. */
  closed?: string;
  /** Starting a new sandbox would make it possible. */
  provision?: boolean;
  /** The round continues an attempt that failed or was stopped. */
  retry?: boolean;
  /** What happens with the message, by way. */
  hint: Record<Way, string>;
}

const ROUND =
  "Sends feedback to the agent. Its changes are checked, committed and pushed, and the task returns to review.";
const RETRY =
  "Continues the task with your message. The agent's changes are checked, committed and pushed, and the task moves to review.";
const STAYS = "Chat only: the agent's changes stay in its sandbox and are not pushed.";

/** Whether the session has no sandbox that can be resumed: it was deleted, or has failed. */
export function lacksSandbox(session: Session): boolean {
  const status = session.sandbox?.status;
  return !session.sandboxId || status === "destroyed" || status === "error";
}

export function promptOptions(session: Session, task: Task | undefined, attempt: Attempt | undefined): PromptOptions {
  const hint = { round: ROUND, chat: "" };
  const canRetry = attempt !== undefined && isOver(attempt) && task !== undefined && RETRYABLE.includes(task.status);
  if (lacksSandbox(session)) {
    const reason = session.sandbox?.status === "error" ? "The sandbox has failed" : "The session has no sandbox";
    if (canRetry)
      return {
        ways: ["round"],
        retry: true,
        hint: { ...hint, round: `${reason}; a new one will be started. ${RETRY}` },
      };
    const from = session.checkpointAt ? "from the last checkpoint" : "from the last saved state";
    const why = attempt?.status === "merged" ? "Merged" : reason;
    return { ways: [], closed: `${why}. Start a new sandbox to continue ${from}.`, provision: true, hint };
  }
  if (!task || !attempt) return { ways: ["chat"], hint };
  if (attempt.stopping) return { ways: [], closed: "The attempt is being stopped.", hint };
  const chat: PromptOptions = { ways: ["chat"], hint: { ...hint, chat: STAYS } };
  if (attempt.status === "running") {
    const during =
      attempt.step === "agent"
        ? "The agent reads it when it finishes its current work."
        : "The agent reads it while the current steps run.";
    return { ...chat, hint: { ...hint, chat: `${during} Changes made before the commit are part of this round.` } };
  }
  if (task.status === "in_review" && (attempt.status === "in_review" || attempt.status === "ready")) {
    const ready = task.attempts.filter((candidate) => candidate.status === "ready").length;
    if (attempt.status === "ready" && ready > 1)
      return { ...chat, hint: { ...hint, chat: `${STAYS} Pick an attempt to request changes.` } };
    return { ...chat, ways: ["round", "chat"] };
  }
  if (canRetry) return { ways: ["round", "chat"], retry: true, hint: { round: RETRY, chat: STAYS } };
  return chat;
}

const RETRYABLE: readonly Task["status"][] = ["in_progress", "in_review", "cancelled"];
const isOver = (attempt: Attempt): boolean =>
  !attempt.stopping && (attempt.status === "failed" || attempt.status === "cancelled");

/** Return where a message goes: into a turn of its own, or into the task's next round. */
export function promptTarget(
  way: Way,
  task: Task | undefined,
  attempt: Attempt | undefined,
  options: PromptOptions,
): Prompt["target"] {
  if (way !== "round" || !task) return { kind: "turn" };
  if (!options.retry) return { kind: "feedback", taskId: task.id };
  return { kind: "retry", taskId: task.id, attemptId: attempt?.id ?? null };
}
