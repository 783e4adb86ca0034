/** The progress of an attempt: its steps in order, from setup to pull request. Pure. */
import type { Attempt } from "@/api/types";
import { isAtWork, wasStopped } from "@/model/task-facts";

export interface Progress {
  name: string;
  label: string;
  status: "done" | "running" | "failed" | "stopped" | "fixed" | "skipped" | "not_applicable" | "ahead";
  /** The total time of all tries in this round; null if there are none. */
  seconds: number | null;
  /** When the running step started; null if it is not running. */
  since: string | null;
  times: number;
  error: string | null;
}

const ORDER: [name: string, label: string][] = [
  ["setup", "Setup"],
  ["provision", "Sandbox"],
  ["checkout", "Checkout"],
  ["agent", "Agent"],
  ["verify", "Verify"],
  ["commit", "Commit"],
  ["push", "Push"],
  ["pull_request", "Pull request"],
];

/** Return the steps. A later round omits some steps: once the round is past them, they are shown as in the earlier round. */
export function progressOf(attempt: Attempt): Progress[] {
  const steps = attempt.steps ?? [];
  const busy = isAtWork(attempt);
  const places = steps
    .filter((step) => step.round === attempt.round)
    .map((step) => ORDER.findIndex(([name]) => name === step.name));
  const reached = Math.max(-1, ...places);
  // A step can complete and still end the attempt, such as a check that fails for the last time.
  const stuck = attempt.status === "failed" ? steps[steps.length - 1] : undefined;
  return ORDER.map(([name, label], place) => {
    const all = steps.filter((step) => step.name === name);
    const own = all.filter((step) => step.round === attempt.round);
    // A round that was stopped or failed did not come further, even if an earlier one did.
    const ahead = place > reached && (busy || attempt.status === "failed");
    const shown = own.length || ahead ? own : all.filter((step) => step.round === all[all.length - 1]?.round);
    const last = shown[shown.length - 1];
    const running = last?.status === "running" && busy;
    // After a failed check, the agent runs again and the steps after it are repeated.
    const overtaken = last && busy && !running && shown === own && isBehind(steps, last.number, attempt, place);
    return {
      name,
      label,
      status:
        !last || (overtaken && last.outcome !== "failed")
          ? "ahead"
          : running
            ? "running"
            : last === stuck || last.outcome === "running"
              ? wasStopped(attempt)
                ? "stopped"
                : "failed"
              : last.outcome !== "succeeded"
                ? last.outcome
                : shown.some((step) => step.outcome === "fixed")
                  ? "fixed"
                  : "done",
      seconds: shown.length
        ? shown.reduce(
            (sum, step) =>
              sum + (step.finishedAt ? (Date.parse(step.finishedAt) - Date.parse(step.startedAt)) / 1000 : 0),
            0,
          )
        : null,
      since: running ? (last?.startedAt ?? null) : null,
      times: shown.length,
      error: last?.error ?? (last && last === stuck ? attempt.error : null),
    };
  });
}

function isBehind(steps: NonNullable<Attempt["steps"]>, number: number, attempt: Attempt, place: number): boolean {
  return steps.some(
    (step) =>
      step.round === attempt.round &&
      step.number > number &&
      step.status === "running" &&
      ORDER.findIndex(([name]) => name === step.name) < place,
  );
}
