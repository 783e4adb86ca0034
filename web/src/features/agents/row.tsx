import { CircleCheck, CircleX, LoaderCircle, Trash2 } from "lucide-react";
import { useDeleteAgent } from "@/api/queries/agents";
import type { Agent } from "@/api/types";
import { AddKey } from "@/features/models/provider-help";
import { formatDuration } from "@/lib/format";
import { needsKey } from "@/model/agent-facts";
import { Badge } from "@/ui/badge";
import { Button, IconButton } from "@/ui/button";
import { Confirm } from "@/ui/dialog";
import { showError } from "@/ui/toast";
import type { StepName, TestProgress } from "./test-progress";
import { useAgentTest } from "./use-agent-test";

const STEP_NAMES: Record<StepName, string> = {
  sandbox: "Sandbox",
  install: "Install",
  start: "Start",
  answer: "Reply",
};

export function AgentRow({ agent, mayChange, onEdit }: { agent: Agent; mayChange: boolean; onEdit: () => void }) {
  const lacksKey = needsKey(agent) && agent.modelProjects.length === 0;
  const { progress, start, busy } = useAgentTest(agent.name);
  const remove = useDeleteAgent({ onError: showError("Could not delete the agent") });
  return (
    <li className="px-4 py-3">
      <div className="flex flex-wrap items-start gap-x-3 gap-y-2">
        <div className="min-w-0 flex-1 basis-64">
          <p className="flex flex-wrap items-center gap-1.5 text-[13px] font-medium">
            {agent.title} <code className="font-mono text-xs font-normal text-soft">{agent.name}</code>
            {lacksKey && <Badge tone="warn">Needs a key</Badge>}
            {!needsKey(agent) && <Badge tone="ok">Ready</Badge>}
            {agent.demo && <Badge>Demo: no model, follows written instructions</Badge>}
            {!agent.builtIn && <Badge tone="accent">{agent.ownerId ? "Personal" : "Shared"}</Badge>}
            {agent.version && agent.builtIn && <Badge>{agent.version}</Badge>}
          </p>
          <p className="text-xs break-words text-soft">{agent.description}</p>
          <p className="text-xs break-words text-faint">
            {agent.apis.length ? `APIs: ${agent.apis.join(", ")}` : "Needs no model"}
            {agent.modes.length > 0 && ` · modes: ${agent.modes.join(", ")}`}
            {agent.models.length > 0 &&
              ` · ${agent.models.slice(0, 4).join(", ")}${agent.models.length > 4 ? " …" : ""}`}
          </p>
        </div>
        <div className="flex flex-wrap items-center gap-1.5">
          {lacksKey && <AddKey agent={agent.name} look="plain" />}
          <Button size="sm" busy={busy} onClick={start} aria-label={`Test ${agent.title}`}>
            Test
          </Button>
          {mayChange && (
            <>
              <Button size="sm" onClick={onEdit} aria-label={`Edit ${agent.title}`}>
                Edit
              </Button>
              <Confirm
                trigger={
                  <IconButton label={`Delete ${agent.title}`} size="sm">
                    <Trash2 className="size-3.5" aria-hidden />
                  </IconButton>
                }
                title={`Delete ${agent.title}?`}
                action="Delete"
                onConfirm={() => remove.mutateAsync(agent.name)}
              >
                Tasks that use it can no longer start. Running attempts continue.
              </Confirm>
            </>
          )}
        </div>
      </div>
      {progress && <Progress progress={progress} />}
    </li>
  );
}

function Progress({ progress }: { progress: TestProgress }) {
  return (
    <div className="mt-2 rounded-md border bg-page px-3 py-2 text-[13px]" aria-live="polite">
      <ol className="flex flex-wrap gap-x-4 gap-y-1">
        {progress.steps.map((step) => (
          <li key={step.name} className="flex items-center gap-1.5">
            {step.ok === null ? (
              <LoaderCircle className="size-3.5 animate-spin text-info" role="img" aria-label="in progress" />
            ) : step.ok ? (
              <CircleCheck className="size-3.5 text-ok" role="img" aria-label="done" />
            ) : (
              <CircleX className="size-3.5 text-bad" role="img" aria-label="failed" />
            )}
            {STEP_NAMES[step.name]}
            {step.seconds !== null && (
              <span className="text-xs text-faint tabular-nums">
                {step.seconds < 10 ? `${step.seconds.toFixed(1)}s` : formatDuration(step.seconds)}
              </span>
            )}
          </li>
        ))}
      </ol>
      {progress.action && <p className="mt-1 truncate text-xs text-soft">{progress.action}</p>}
      {progress.over && progress.ok && <p className="mt-1 text-ok">Test passed. Reply: {progress.answer}</p>}
      {progress.over && !progress.ok && (
        <p className="mt-1 break-words whitespace-pre-wrap text-bad">{progress.error ?? "The test failed."}</p>
      )}
    </div>
  );
}
