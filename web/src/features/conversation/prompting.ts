/** Whether a session's agent can be told something now, and what then comes of it. Pure. */
import type { Attempt, Session, Task } from "@/api/types";

/** `round`: the task goes back to in progress, and what the agent does is verified, committed and pushed. `chat`: it is only told. */
export type Way = "round" | "chat";

export interface Prompting {
  ways: Way[];
  /** Why nothing can be said; undefined: it can. */
  closed?: string;
  /** A new sandbox would help. */
  provision?: boolean;
  /** `retry`: the round goes on with what has failed or was stopped. */
  retry?: boolean;
  /** What comes of it, by way. */
  hint: Record<Way, string>;
}

const ROUND =
  "Back to the agent as feedback: what it then does is checked, committed and pushed, and the task comes back to review.";
const RETRY =
  "Continues the task: the agent reads it, and what it then does is checked, committed and pushed, and the task comes to review.";
const STAYS = "Only to the agent: what it changes stays in its sandbox and is not pushed.";

/** Nothing wakes its sandbox: it was destroyed, or has failed. */
export function lacksSandbox(session: Session): boolean {
  const status = session.sandbox?.status;
  return !session.sandboxId || status === "destroyed" || status === "error";
}

export function prompting(session: Session, task: Task | undefined, attempt: Attempt | undefined): Prompting {
  const hint = { round: ROUND, chat: "" };
  const again = attempt !== undefined && isOver(attempt) && task !== undefined && CONTINUED.includes(task.status);
  if (lacksSandbox(session)) {
    const why = session.sandbox?.status === "error" ? "The sandbox has failed" : "The session's sandbox is gone";
    if (again)
      return { ways: ["round"], retry: true, hint: { ...hint, round: `${why}; a new one is started. ${RETRY}` } };
    const from = session.checkpointAt ? "from its last checkpoint" : "with its work as it was last saved";
    return { ways: [], closed: `${why}. The agent needs a new one, which begins ${from}.`, provision: true, hint };
  }
  if (!task || !attempt) return { ways: ["chat"], hint };
  if (attempt.stopping) return { ways: [], closed: "The attempt is being stopped.", hint };
  const chat: Prompting = { ways: ["chat"], hint: { ...hint, chat: STAYS } };
  if (attempt.status === "running") {
    const during =
      attempt.step === "agent"
        ? "The agent reads it when it is done with what it does now."
        : "The agent reads it beside the steps that run now.";
    return { ...chat, hint: { ...hint, chat: `${during} What it changes before the commit belongs to this round.` } };
  }
  if (task.status === "in_review" && (attempt.status === "in_review" || attempt.status === "ready")) {
    const ready = task.attempts.filter((one) => one.status === "ready").length;
    if (attempt.status === "ready" && ready > 1)
      return { ...chat, hint: { ...hint, chat: `${STAYS} Pick an attempt to send it back with feedback.` } };
    return { ...chat, ways: ["round", "chat"] };
  }
  if (again) return { ways: ["round", "chat"], retry: true, hint: { round: RETRY, chat: STAYS } };
  return chat;
}

const CONTINUED: readonly Task["status"][] = ["in_progress", "in_review", "cancelled"];
const isOver = (attempt: Attempt): boolean =>
  !attempt.stopping && (attempt.status === "failed" || attempt.status === "cancelled");
