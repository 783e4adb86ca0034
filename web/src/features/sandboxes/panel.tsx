import { useNavigate } from "@tanstack/react-router";
import { GitFork, Pause, Play, RotateCcw, Trash2 } from "lucide-react";
import type { ReactNode } from "react";
import { useSandbox } from "@/api/queries/sandboxes";
import { useProvisionSandbox } from "@/api/queries/sessions";
import type { Sandbox } from "@/api/types";
import { formatPeriod } from "@/lib/format";
import { isolationLabel } from "@/model/isolation";
import { SANDBOXES } from "@/model/status-labels";
import { Button } from "@/ui/button";
import { CopyButton } from "@/ui/code";
import { Confirm } from "@/ui/dialog";
import { Loaded } from "@/ui/states";
import { Status } from "@/ui/status";
import { Ago, Elapsed } from "@/ui/time";
import { showError, toast } from "@/ui/toast";
import { isAllowed, useSandboxAction } from "./actions";
import { DeniedConnections } from "./denied-connections";
import { Editors } from "./editors";
import { Ports } from "./ports";
import { LiveUsage } from "./usage";

export function SandboxPanel({ sandboxId, sessionId }: { sandboxId: string; sessionId?: string }) {
  const query = useSandbox(sandboxId);
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: it scrolls, so it must be reachable by keyboard
    <section className="min-h-0 flex-1 overflow-y-auto p-3 sm:p-4" aria-label="Sandbox" tabIndex={0}>
      <Loaded query={query}>
        {(row) => <SandboxDetails row={row} sessionId={sessionId ?? row.sessionId ?? undefined} />}
      </Loaded>
    </section>
  );
}

function SandboxDetails({ row, sessionId }: { row: Sandbox; sessionId: string | undefined }) {
  const running = row.status === "running";
  const destroyed = row.status === "destroyed";
  return (
    <div className="mx-auto flex max-w-3xl flex-col gap-5">
      <div className="flex flex-wrap items-center gap-2" aria-live="polite">
        <Status status={SANDBOXES[row.status]} />
        <span className="font-mono text-xs text-soft">{row.id}</span>
        <CopyButton text={row.id} label="Copy sandbox ID" />
        <span className="ml-auto flex flex-wrap gap-2">
          <Actions row={row} sessionId={sessionId} />
        </span>
      </div>
      {row.error && (
        <p role="alert" className="rounded-md bg-bad-soft px-3 py-2 text-[13px] text-bad">
          {row.error}
        </p>
      )}
      {!destroyed && (
        <Group title="Usage">
          <LiveUsage sandboxId={row.id} running={running} />
        </Group>
      )}
      {!destroyed && (
        <Group title="Ports">
          <Ports sandboxId={row.id} running={running} />
        </Group>
      )}
      {!destroyed && (
        <Group title="Blocked connections">
          <DeniedConnections sandboxId={row.id} projectId={row.projectId ?? undefined} running={running} />
        </Group>
      )}
      {!destroyed && sessionId && (
        <Group title="Editors">
          <Editors sessionId={sessionId} sandboxId={row.id} />
        </Group>
      )}
      <Group title="Details">
        <dl className="grid grid-cols-[auto_1fr] gap-x-4 gap-y-1 text-[13px]">
          <Fact name="Template">{row.template}</Fact>
          {row.isolation && <Fact name="Isolation">{isolationLabel(row.isolation)}</Fact>}
          <Fact name="Created">
            <Ago at={row.createdAt} />
          </Fact>
          {row.startedAt && !destroyed && (
            <Fact name="Up for">
              <Elapsed from={row.startedAt} />
            </Fact>
          )}
          {row.usedAt && (
            <Fact name="Last used">
              <Ago at={row.usedAt} />
            </Fact>
          )}
          <Fact name="Pauses when idle for">{formatPeriod(row.idleSeconds)}</Fact>
          <Fact name="Commands">{row.commandCount}</Fact>
          <Fact name="Pauses">{row.pauseCount}</Fact>
          {row.engineId && (
            <Fact name="E2B ID">
              <span className="font-mono text-xs break-all">{row.engineId}</span>
            </Fact>
          )}
        </dl>
      </Group>
    </div>
  );
}

function Actions({ row, sessionId }: { row: Sandbox; sessionId: string | undefined }) {
  const navigate = useNavigate();
  const pause = useSandboxAction();
  const resume = useSandboxAction();
  const fork = useSandboxAction();
  const destroy = useSandboxAction();
  const forkSandbox = () =>
    fork.mutate(
      { action: "fork", ids: [row.id] },
      {
        onSuccess: ([copy]) => {
          if (!copy) return;
          toast.success("The fork is running", {
            action: {
              label: "Open",
              onClick: () => navigate({ to: "/sandboxes/$sandboxId", params: { sandboxId: copy.id } }),
            },
          });
        },
      },
    );
  return (
    <>
      {isAllowed("pause", row.status) && (
        <Button size="sm" busy={pause.isPending} onClick={() => pause.mutate({ action: "pause", ids: [row.id] })}>
          <Pause className="size-3.5" aria-hidden /> Pause
        </Button>
      )}
      {isAllowed("resume", row.status) && (
        <Button size="sm" busy={resume.isPending} onClick={() => resume.mutate({ action: "resume", ids: [row.id] })}>
          <Play className="size-3.5" aria-hidden /> Resume
        </Button>
      )}
      {isAllowed("fork", row.status) && (
        <Button size="sm" busy={fork.isPending} onClick={forkSandbox}>
          <GitFork className="size-3.5" aria-hidden /> Fork
        </Button>
      )}
      {sessionId && (row.status === "error" || row.status === "destroyed") && <Provision sessionId={sessionId} />}
      {isAllowed("destroy", row.status) && (
        <Confirm
          trigger={
            <Button size="sm" look="danger">
              <Trash2 className="size-3.5" aria-hidden /> Delete
            </Button>
          }
          title="Delete this sandbox?"
          action="Delete"
          onConfirm={() => destroy.mutateAsync({ action: "destroy", ids: [row.id] })}
        >
          Its processes and files are deleted. The branch, checkpoints and conversation are kept.
        </Confirm>
      )}
    </>
  );
}

/** Start a new sandbox from the last checkpoint, for a session whose sandbox failed or was deleted. */
function Provision({ sessionId }: { sessionId: string }) {
  const provision = useProvisionSandbox({ onError: showError("Could not start a new sandbox") });
  return (
    <Button size="sm" busy={provision.isPending} onClick={() => provision.mutate(sessionId)}>
      <RotateCcw className="size-3.5" aria-hidden /> Start new sandbox
    </Button>
  );
}

function Group({ title, children }: { title: string; children: ReactNode }) {
  return (
    <div>
      <h3 className="mb-1.5 text-[13px] font-semibold">{title}</h3>
      {children}
    </div>
  );
}

function Fact({ name, children }: { name: string; children: ReactNode }) {
  return (
    <>
      <dt className="text-soft">{name}</dt>
      <dd className="min-w-0">{children}</dd>
    </>
  );
}
