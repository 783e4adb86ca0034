/** Labels and colours of the platform's states. */
import type { Schemas } from "@/api/client";

/** The colour of a label. */
export type Tone = "ok" | "warn" | "bad" | "info" | "accent" | "idle";

export interface StatusLabel {
  text: string;
  tone: Tone;
  /** Work is in progress. */
  busy?: boolean;
}

export const COLUMNS: Record<Schemas["Column"], StatusLabel> = {
  backlog: { text: "Backlog", tone: "idle" },
  in_progress: { text: "In progress", tone: "info" },
  in_review: { text: "In review", tone: "accent" },
  done: { text: "Done", tone: "ok" },
  cancelled: { text: "Cancelled", tone: "idle" },
};

export const ATTEMPTS: Record<Schemas["AttemptStatus"], StatusLabel> = {
  queued: { text: "Queued", tone: "idle", busy: true },
  running: { text: "Running", tone: "info", busy: true },
  ready: { text: "Ready", tone: "accent" },
  in_review: { text: "In review", tone: "accent" },
  failed: { text: "Failed", tone: "bad" },
  cancelled: { text: "Stopped", tone: "idle" },
  merged: { text: "Merged", tone: "ok" },
  archived: { text: "Archived", tone: "idle" },
};

export const SANDBOXES: Record<Schemas["Status"], StatusLabel> = {
  provisioning: { text: "Starting", tone: "info", busy: true },
  running: { text: "Running", tone: "ok" },
  paused: { text: "Paused", tone: "idle" },
  error: { text: "Error", tone: "bad" },
  destroyed: { text: "Deleted", tone: "idle" },
};

export const TURNS: Record<Schemas["TurnStatus"], StatusLabel> = {
  queued: { text: "Queued", tone: "idle", busy: true },
  running: { text: "Working", tone: "info", busy: true },
  waiting: { text: "Needs you", tone: "warn", busy: true },
  completed: { text: "Done", tone: "ok" },
  cancelled: { text: "Stopped", tone: "idle" },
  failed: { text: "Failed", tone: "bad" },
  over_budget: { text: "Over budget", tone: "bad" },
};

/** How a turn ended in which permission was denied. */
export const ENDED_AFTER_DENIAL: StatusLabel = { text: "Ended, permission denied", tone: "warn" };

export const PULLS: Record<Schemas["PullState"], StatusLabel> = {
  open: { text: "Open", tone: "ok" },
  closed: { text: "Closed", tone: "bad" },
  merged: { text: "Merged", tone: "ok" },
  pushed: { text: "Pushed", tone: "info" },
};

export const CHECKS: Record<Schemas["Checks"], StatusLabel> = {
  none: { text: "No checks", tone: "idle" },
  pending: { text: "Checks running", tone: "warn", busy: true },
  passing: { text: "Checks passed", tone: "ok" },
  failing: { text: "Checks failed", tone: "bad" },
};

export const REVIEWS: Record<Schemas["Review"], StatusLabel> = {
  none: { text: "No review", tone: "idle" },
  commented: { text: "Commented", tone: "info" },
  approved: { text: "Approved", tone: "ok" },
  changes_requested: { text: "Changes requested", tone: "warn" },
};

export const STEPS: Record<string, string> = {
  setup: "Setting up",
  provision: "Starting a sandbox",
  checkout: "Checking out",
  agent: "Agent working",
  verify: "Verifying",
  commit: "Committing",
  push: "Pushing",
  pull_request: "Opening a pull request",
};
