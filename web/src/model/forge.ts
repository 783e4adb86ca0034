/** Parse the untyped `detail` of a pull request, and determine the kind of forge of a project. Pure. */
import type { Attempt, MergeMethod, Project, PullRequest, PullSummary } from "@/api/types";
import type { StatusLabel } from "./status-labels";

export interface Run {
  name: string;
  status: string;
  conclusion: string | null;
  url: string | null;
  summary: string | null;
}

export interface Remark {
  kind: string;
  id: string;
  author: string;
  text: string;
  at: string;
  state: string | null;
  path: string | null;
  line: number | null;
  url: string | null;
}

export interface Detail {
  runs: Run[];
  remarks: Remark[];
  labels: string[];
  warnings: string[];
}

type Loose = Record<string, unknown>;

const text = (value: unknown): string | null => (typeof value === "string" && value ? value : null);
const list = (value: unknown): unknown[] => (Array.isArray(value) ? value : []);
const things = (value: unknown): Loose[] =>
  list(value).filter((candidate): candidate is Loose => typeof candidate === "object" && candidate !== null);

/** Parse the detail, newest remark first. Malformed entries are dropped. */
export function detailOf(pull: PullRequest): Detail {
  const detail = pull.detail as Loose;
  return {
    runs: things(detail.runs).map((run) => ({
      name: text(run.name) ?? "check",
      status: text(run.status) ?? "",
      conclusion: text(run.conclusion),
      url: text(run.url),
      summary: text(run.summary),
    })),
    remarks: things(detail.remarks)
      .filter((entry) => entry.kind !== "check")
      .map((entry) => ({
        kind: text(entry.kind) ?? "comment",
        id: String(entry.id ?? ""),
        author: text(entry.author) ?? "someone",
        text: text(entry.text) ?? "",
        at: text(entry.at) ?? pull.updatedAt,
        state: text(entry.state),
        path: text(entry.path),
        line: typeof entry.line === "number" ? entry.line : null,
        url: text(entry.url),
      }))
      .sort((a, b) => b.at.localeCompare(a.at)),
    labels: list(detail.labels).flatMap((label) => text(label) ?? []),
    warnings: list(detail.warnings).flatMap((warning) => text(warning) ?? []),
  };
}

/** Return a message to the agent that quotes a remark. */
export function quoteRemark(remark: Remark): string {
  const place = remark.path ? ` (${remark.path}${remark.line === null ? "" : `:${remark.line}`})` : "";
  const quote = remark.text.trim().replace(/^/gm, "> ");
  return `${remark.author} wrote on the pull request${place}:\n\n${quote}`;
}

const CONCLUSIONS: Record<string, StatusLabel> = {
  success: { text: "passed", tone: "ok" },
  failure: { text: "failed", tone: "bad" },
  timed_out: { text: "timed out", tone: "bad" },
  startup_failure: { text: "did not start", tone: "bad" },
  action_required: { text: "action required", tone: "warn" },
  cancelled: { text: "cancelled", tone: "idle" },
  skipped: { text: "skipped", tone: "idle" },
  neutral: { text: "neutral", tone: "idle" },
  stale: { text: "stale", tone: "idle" },
};

export function runStatus(run: Run): StatusLabel {
  if (run.conclusion) return CONCLUSIONS[run.conclusion] ?? { text: run.conclusion, tone: "idle" };
  return run.status === "in_progress"
    ? { text: "running", tone: "warn", busy: true }
    : { text: run.status || "waiting", tone: "idle", busy: true };
}

export interface Verification {
  ok: boolean;
  command: string;
}

/** Return the result of an attempt's verify command; null if it was not run. */
export function verificationOf(attempt: Pick<Attempt, "verified" | "verification"> | undefined): Verification | null {
  if (!attempt || attempt.verified === null) return null;
  return { ok: attempt.verified, command: text(attempt.verification?.command) ?? "the verify command" };
}

/** Return the kind of forge, by the same rules as the platform. */
export function forgeOf(project: Project): "github" | "plain" {
  const { kind, apiUrl } = project.settings.forge ?? { kind: "auto", apiUrl: null };
  if (kind !== "auto") return kind;
  return apiUrl || hostOf(project.repository ?? "") === "github.com" ? "github" : "plain";
}

/** Return the host of a repository's address in lower case; undefined for a path. */
export function hostOf(repository: string): string | undefined {
  return /^(?:[a-z+]+:\/\/(?:[^@/]*@)?|[^@/]+@)([^/:]+)/i.exec(repository)?.[1]?.toLowerCase();
}

export const METHODS: Record<MergeMethod, string> = {
  squash: "Squash into one commit",
  merge: "Merge commit",
  rebase: "Rebase the commits",
};
export const METHOD_CHOICES = Object.entries(METHODS).map(([value, label]) => ({ value, label }));

/** Return why the pull request cannot be merged now; null if a merge can be tried. */
export function mergeBar(pull: PullRequest): string | null {
  if (pull.state !== "open") return `The pull request is ${pull.state}.`;
  if (pull.draft) return "This is a draft. Mark it as ready for review first.";
  if (pull.mergeable === false)
    return "There are conflicts with the base branch. Update the branch in the Changes tab, then push.";
  return null;
}

/** Whether a task's pull request or pushed branch can be merged now. */
export function canMerge(pull: PullSummary | null): pull is PullSummary {
  if (!pull) return false;
  return pull.state === "pushed" || (pull.state === "open" && !pull.draft && pull.mergeable !== false);
}

/** Return what a user can do about an error of the forge, by its code. */
export function helpFor(code: string): "credential" | "again" | "refresh" | null {
  if (["forge_unauthorized", "forge_forbidden", "forge_not_found", "remote_refused", "remote_missing"].includes(code))
    return "credential";
  if (["forge_unreachable", "forge_rate_limited", "remote_unreachable", "unreachable"].includes(code)) return "again";
  return code === "forge_refused" || code === "branch_checked_out" || code === "branch_moved" ? "refresh" : null;
}

/** Split names separated by commas or newlines, without duplicates. */
export function splitNames(given: string): string[] {
  return [
    ...new Set(
      given
        .split(/[,\n]/)
        .map((part) => part.trim())
        .filter(Boolean),
    ),
  ];
}
