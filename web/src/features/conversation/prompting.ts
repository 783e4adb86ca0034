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
  /** What comes of it, by way. */
  hint: Record<Way, string>;
}

const ROUND =
  "Back to the agent as feedback: what it then does is checked, committed and pushed, and the task comes back to review.";
const STAYS = "Only to the agent: what it changes stays in its sandbox and is not pushed.";

export function prompting(session: Session, task: Task | undefined, attempt: Attempt | undefined): Prompting {
  const hint = { round: ROUND, chat: "" };
  const gone = session.sandbox?.status;
  if (!session.sandboxId || gone === "destroyed" || gone === "error") {
    const why = gone === "error" ? "The sandbox has failed" : "The session's sandbox is gone";
    const from = session.checkpointAt ? "from its last checkpoint" : "from its branch";
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
  if (attempt.status === "failed" || attempt.status === "cancelled")
    return { ...chat, hint: { ...hint, chat: `${STAYS} “Retry” goes on with the task.` } };
  return chat;
}
