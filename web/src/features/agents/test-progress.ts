/** The progress of an agent's test, computed from the events of its session. */
import type { PlatformEvent } from "@/api/types";

export const STEPS = ["sandbox", "install", "start", "answer"] as const;
export type StepName = (typeof STEPS)[number];

export interface Step {
  name: StepName;
  /** Null while in progress. */
  seconds: number | null;
  ok: boolean | null;
}

export interface TestProgress {
  steps: Step[];
  /** The current action, as described by the platform. */
  action: string | null;
  over: boolean;
  ok: boolean;
  answer: string | null;
  error: string | null;
}

interface TestResult {
  ok?: boolean;
  steps?: { name: StepName; seconds: number; ok: boolean }[];
  answer?: string | null;
  error?: string | null;
}

/** Compute the progress from the events received so far, in any order and with duplicates. */
export function progressOf(received: PlatformEvent[]): TestProgress {
  const events = [...new Map(received.map((event) => [event.seq, event])).values()].sort((a, b) => a.seq - b.seq);
  const end = events.find((event) => event.kind === "agent.tested");
  if (end) {
    const { ok = false, steps = [], answer = null, error = null } = end.data as TestResult;
    return { steps, action: null, over: true, ok, answer, error };
  }
  const steps: Step[] = [];
  let action: string | null = null;
  let before = events[0] ? Date.parse(events[0].at) : 0;
  let running = "sandbox" as StepName;
  const finishStep = (name: StepName, at: string, next: StepName) => {
    if (steps.some((step) => step.name === name)) return;
    steps.push({ name, seconds: Math.max(0, (Date.parse(at) - before) / 1000), ok: true });
    before = Date.parse(at);
    running = next;
  };
  for (const event of events) {
    if (event.kind === "sandbox.running") finishStep("sandbox", event.at, "start");
    else if (event.kind === "agent.installing") {
      action = typeof event.data.what === "string" ? event.data.what : null;
      if (running === "start") running = "install";
    } else if (event.kind === "agent.ready") {
      if (running === "install") finishStep("install", event.at, "start");
      finishStep("start", event.at, "answer");
      action = null;
    } else if (event.kind === "message.created" && event.data.role === "agent") {
      finishStep("answer", event.at, "answer");
    }
  }
  if (!steps.some((step) => step.name === running)) steps.push({ name: running, seconds: null, ok: null });
  return { steps, action, over: false, ok: false, answer: null, error: null };
}
