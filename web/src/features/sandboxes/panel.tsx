import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { GitFork, Pause, Play, RotateCcw, Trash2 } from "lucide-react";
import type { ReactNode } from "react";
import { api, got } from "@/api/client";
import { sandbox as sandboxQuery } from "@/api/queries";
import type { Sandbox } from "@/api/types";
import { duration } from "@/lib/format";
import { SANDBOXES } from "@/lib/status";
import { Button } from "@/ui/button";
import { CopyButton } from "@/ui/code";
import { Confirm } from "@/ui/dialog";
import { Loaded } from "@/ui/states";
import { Status } from "@/ui/status";
import { Ago, Elapsed } from "@/ui/time";
import { failed, toast } from "@/ui/toast";
import { allows, useVerb } from "./actions";
import { Denied } from "./denied";
import { Editors } from "./editors";
import { Ports } from "./ports";
import { LiveUsage } from "./usage";

export function SandboxPanel({ sandboxId, sessionId }: { sandboxId: string; sessionId?: string }) {
  const query = useQuery(sandboxQuery(sandboxId));
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: it scrolls, so it must be reachable by keyboard
    <section className="min-h-0 flex-1 overflow-y-auto p-3 sm:p-4" aria-label="Sandbox" tabIndex={0}>
      <Loaded query={query}>{(row) => <Facts row={row} sessionId={sessionId ?? row.sessionId ?? undefined} />}</Loaded>
    </section>
  );
}

function Facts({ row, sessionId }: { row: Sandbox; sessionId: string | undefined }) {
  const awake = row.status === "running";
  const over = row.status === "destroyed";
  return (
    <div className="mx-auto flex max-w-3xl flex-col gap-5">
      <div className="flex flex-wrap items-center gap-2" aria-live="polite">
        <Status word={SANDBOXES[row.status]} />
        <span className="font-mono text-xs text-soft">{row.id}</span>
        <CopyButton text={row.id} label="Copy sandbox ID" />
        <span className="ml-auto flex flex-wrap gap-2">
          <Verbs row={row} sessionId={sessionId} />
        </span>
      </div>
      {row.error && (
        <p role="alert" className="rounded-md bg-bad-soft px-3 py-2 text-[13px] text-bad">
          {row.error}
        </p>
      )}
      {!over && (
        <Part title="Usage">
          <LiveUsage sandboxId={row.id} awake={awake} />
        </Part>
      )}
      {!over && (
        <Part title="Ports">
          <Ports sandboxId={row.id} awake={awake} />
        </Part>
      )}
      {!over && (
        <Part title="Blocked connections">
          <Denied sandboxId={row.id} projectId={row.projectId ?? undefined} awake={awake} />
        </Part>
      )}
      {!over && sessionId && (
        <Part title="Editors">
          <Editors sessionId={sessionId} sandboxId={row.id} />
        </Part>
      )}
      <Part title="Details">
        <dl className="grid grid-cols-[auto_1fr] gap-x-4 gap-y-1 text-[13px]">
          <Fact name="Template">{row.template}</Fact>
          <Fact name="Created">
            <Ago at={row.createdAt} />
          </Fact>
          {row.startedAt && !over && (
            <Fact name="Up for">
              <Elapsed from={row.startedAt} />
            </Fact>
          )}
          {row.usedAt && (
            <Fact name="Last used">
              <Ago at={row.usedAt} />
            </Fact>
          )}
          <Fact name="Pauses when idle for">{duration(row.idleSeconds)}</Fact>
          <Fact name="Commands">{row.commandCount}</Fact>
          <Fact name="Pauses">{row.pauseCount}</Fact>
          {row.engineId && (
            <Fact name="E2B ID">
              <span className="font-mono text-xs break-all">{row.engineId}</span>
            </Fact>
          )}
        </dl>
      </Part>
    </div>
  );
}

function Verbs({ row, sessionId }: { row: Sandbox; sessionId: string | undefined }) {
  const navigate = useNavigate();
  const pause = useVerb("pause");
  const resume = useVerb("resume");
  const fork = useVerb("fork");
  const destroy = useVerb("destroy");
  const copied = () =>
    fork.mutate([row.id], {
      onSuccess: ([made]) => {
        if (!made) return;
        toast.success("The fork is running", {
          action: {
            label: "Open",
            onClick: () => navigate({ to: "/sandboxes/$sandboxId", params: { sandboxId: made.id } }),
          },
        });
      },
    });
  return (
    <>
      {allows("pause", row.status) && (
        <Button size="sm" busy={pause.isPending} onClick={() => pause.mutate([row.id])}>
          <Pause className="size-3.5" aria-hidden /> Pause
        </Button>
      )}
      {allows("resume", row.status) && (
        <Button size="sm" busy={resume.isPending} onClick={() => resume.mutate([row.id])}>
          <Play className="size-3.5" aria-hidden /> Resume
        </Button>
      )}
      {allows("fork", row.status) && (
        <Button size="sm" busy={fork.isPending} onClick={copied}>
          <GitFork className="size-3.5" aria-hidden /> Fork
        </Button>
      )}
      {sessionId && (row.status === "error" || row.status === "destroyed") && <Provision sessionId={sessionId} />}
      {allows("destroy", row.status) && (
        <Confirm
          trigger={
            <Button size="sm" look="danger">
              <Trash2 className="size-3.5" aria-hidden /> Destroy
            </Button>
          }
          title="Destroy this sandbox?"
          action="Destroy"
          onConfirm={() => destroy.mutateAsync([row.id])}
        >
          Its processes and files are deleted. The branch, checkpoints and conversation are kept.
        </Confirm>
      )}
    </>
  );
}

/** Start a new sandbox from the last checkpoint, for a session whose sandbox failed or was destroyed. */
function Provision({ sessionId }: { sessionId: string }) {
  const client = useQueryClient();
  const provision = useMutation({
    mutationFn: () =>
      got(api.POST("/api/v1/sessions/{session_id}/provision", { params: { path: { session_id: sessionId } } })),
    onSuccess: () => client.invalidateQueries({ queryKey: ["session", sessionId] }),
    onError: failed("Could not start a new sandbox"),
  });
  return (
    <Button size="sm" busy={provision.isPending} onClick={() => provision.mutate()}>
      <RotateCcw className="size-3.5" aria-hidden /> Start new sandbox
    </Button>
  );
}

function Part({ title, children }: { title: string; children: ReactNode }) {
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
