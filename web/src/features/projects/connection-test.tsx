import { CircleCheck, CircleX, PlugZap } from "lucide-react";
import { useTestConnection } from "@/api/queries/projects";
import type { ConnectionReport } from "@/model/connection-test";
import { Button } from "@/ui/button";
import { showError } from "@/ui/toast";

/** Test the repository and its forge without changing anything. */
export function ConnectionTest({ projectId }: { projectId: string }) {
  const test = useTestConnection({ onError: showError("Could not test the connection") });
  return (
    <div className="flex flex-col gap-3 p-4" aria-live="polite">
      <div className="flex flex-wrap items-center gap-2">
        <Button onClick={() => test.mutate(projectId)} busy={test.isPending}>
          <PlugZap className="size-3.5" aria-hidden /> Test connection
        </Button>
        <span className="text-xs text-soft">Checks read, push and API access. Nothing is changed.</span>
      </div>
      {test.data && <Findings report={test.data} />}
    </div>
  );
}

function Findings({ report }: { report: ConnectionReport }) {
  return (
    <div className="flex flex-col gap-2">
      <FindingList findings={report.findings} />
      {report.budget && <RateBudget budget={report.budget} />}
    </div>
  );
}

export function FindingList({ findings }: { findings: ConnectionReport["findings"] }) {
  return (
    <ul className="divide-y rounded-md border" aria-label="Test results">
      {findings.map((finding) => (
        <li key={finding.what} className="flex items-start gap-2 px-3 py-2 text-[13px]">
          {finding.ok ? (
            <CircleCheck className="mt-0.5 size-4 shrink-0 text-ok" role="img" aria-label="passed" />
          ) : (
            <CircleX className="mt-0.5 size-4 shrink-0 text-bad" role="img" aria-label="failed" />
          )}
          <span className="w-20 shrink-0 font-medium">{titleOf(finding.what)}</span>
          <span className="min-w-0 break-words text-soft">{finding.detail}</span>
        </li>
      ))}
    </ul>
  );
}

/** Format `base_branch` as "Base branch". */
function titleOf(what: string): string {
  if (what === "api") return "API";
  const words = what.replaceAll("_", " ");
  return words.charAt(0).toUpperCase() + words.slice(1);
}

function RateBudget({ budget }: { budget: NonNullable<ConnectionReport["budget"]> }) {
  const left = budget.limit ? Math.round((100 * budget.remaining) / budget.limit) : 0;
  return (
    <div className="text-xs text-soft">
      <div className="mb-1 flex justify-between tabular-nums">
        <span>
          {budget.remaining} of {budget.limit} API requests left
          {budget.low && <strong className="text-warn"> (low)</strong>}
        </span>
        <span>resets at {new Date(budget.resetsAt).toLocaleTimeString(undefined, { timeStyle: "short" })}</span>
      </div>
      <progress className="h-1.5 w-full accent-accent" aria-label="API requests left" value={left} max={100} />
    </div>
  );
}
