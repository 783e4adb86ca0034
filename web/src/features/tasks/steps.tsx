import clsx from "clsx";
import { Check, Circle, LoaderCircle, Minus, Square, Wrench, X } from "lucide-react";
import type { Attempt } from "@/api/types";
import { formatDuration } from "@/lib/format";
import { describeActivity } from "@/model/task-facts";
import { Hint } from "@/ui/button";
import { Elapsed } from "@/ui/time";
import { type Progress, progressOf } from "./progress";

const STATUS_LABELS = {
  done: "done",
  running: "in progress",
  failed: "failed",
  stopped: "stopped",
  fixed: "failed, then fixed by the agent",
  skipped: "skipped",
  not_applicable: "not applicable",
  ahead: "pending",
};
/** Why a step was not run. */
const REASONS: Record<string, string> = {
  skipped: "The project has no verify command.",
  not_applicable: "The remote does not support pull requests.",
};
/** Statuses of steps that were not run. They are shown faintly. */
const NOT_RUN = ["ahead", "skipped", "not_applicable"];

/** The steps from setup to pull request with their durations. Wraps onto several lines if needed. */
export function StepLine({ attempt }: { attempt: Attempt }) {
  const steps = progressOf(attempt);
  return (
    <section aria-label="Steps">
      <ol className="flex flex-wrap items-center gap-x-2 gap-y-0.5 py-0.5 text-2xs sm:gap-x-1">
        {steps.map((step, index) => (
          <li
            key={step.name}
            className="flex items-center gap-1"
            aria-current={step.status === "running" ? "step" : undefined}
          >
            {index > 0 && (
              <span
                className={clsx(
                  "h-px w-2 max-sm:hidden lg:w-4",
                  step.status === "ahead" ? "bg-line" : "bg-line-strong",
                )}
                aria-hidden
              />
            )}
            <Hint text={describeStep(step, attempt.stepDetail && describeActivity(attempt))}>
              <span
                className={clsx(
                  "flex items-center gap-1",
                  NOT_RUN.includes(step.status) ? "text-faint" : step.status === "failed" ? "text-bad" : "text-soft",
                )}
              >
                <Mark status={step.status} />
                <span
                  className={clsx(["running", "failed", "stopped"].includes(step.status) && "font-medium text-text")}
                >
                  {step.label}
                </span>
                <span className="sr-only">{STATUS_LABELS[step.status]}</span>
                {step.times > 1 && <span className="text-faint">×{step.times}</span>}
                {step.status === "running" && step.since ? (
                  <Elapsed from={step.since} className="min-w-[5ch] text-info tabular-nums" />
                ) : (
                  step.seconds !== null &&
                  !NOT_RUN.includes(step.status) && (
                    <span className="text-faint tabular-nums max-sm:hidden">{formatDuration(step.seconds)}</span>
                  )
                )}
              </span>
            </Hint>
          </li>
        ))}
      </ol>
    </section>
  );
}

function describeStep(step: Progress, detail: string | null): string {
  const time = step.seconds ? `, ${formatDuration(step.seconds)}` : "";
  const times = step.times > 1 ? `, ${step.times} times` : "";
  const why = step.status === "running" ? detail : (step.error ?? REASONS[step.status]);
  return `${step.label}: ${STATUS_LABELS[step.status]}${time}${times}${why ? `. ${why}` : ""}`;
}

function Mark({ status }: { status: Progress["status"] }) {
  if (status === "done") return <Check className="size-3 text-ok" aria-hidden />;
  if (status === "running") return <LoaderCircle className="size-3 animate-spin text-info" aria-hidden />;
  if (status === "stopped") return <Square className="size-2.5 fill-current text-faint" aria-hidden />;
  if (status === "failed") return <X className="size-3 text-bad" aria-hidden />;
  if (status === "fixed") return <Wrench className="size-3 text-ok" aria-hidden />;
  if (status === "skipped" || status === "not_applicable") return <Minus className="size-3 text-faint" aria-hidden />;
  return <Circle className="size-2 text-faint" aria-hidden />;
}
