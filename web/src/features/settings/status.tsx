/** The status of the installation, for administrators: problems, queues, slow work, the engine, disk use and the platform. */
import { Link } from "@tanstack/react-router";
import { CircleAlert, CircleCheck, TriangleAlert } from "lucide-react";
import type { ReactNode } from "react";
import { useInstanceStatus } from "@/api/queries/platform";
import type { EngineReport, InstanceProblem, InstanceStatus, SlowWork, WorkQueue } from "@/api/types";
import { formatBytes, formatPreciseDuration } from "@/lib/format";
import { isolationLabel } from "@/model/isolation";
import { Button } from "@/ui/button";
import { Section } from "@/ui/page";
import { Loaded } from "@/ui/states";
import { Elapsed } from "@/ui/time";
import { Disk } from "./disk";

const QUEUES: Record<WorkQueue["name"], string> = {
  attempts: "Task attempts",
  turns: "Prompts",
  questions: "Questions to people",
  git: "Git operations",
  preparations: "Preparations",
  sandboxes: "Sandboxes",
  commands: "Commands",
};

/** Labels for the features that an engine can lack. */
const MISSING: Record<string, string> = {
  suspend: "No pausing to disk",
  gvisor: "No gVisor",
  "containers.namespace": "No containers (Namespaces)",
  "containers.gvisor": "No containers (gVisor)",
  egress: "No internet",
  network: "No network",
  freezer: "No freezer",
  disk: "No disk limits",
  users: "No user namespaces",
  cgroups: "No cgroups",
};

export function InstallationStatus() {
  const query = useInstanceStatus();
  return (
    <Loaded query={query}>
      {(status) => (
        <>
          <Section
            title="Needs attention"
            actions={
              <Button size="sm" busy={query.isFetching} onClick={() => query.refetch()}>
                Check again
              </Button>
            }
          >
            <Problems problems={status.problems} />
          </Section>
          <Section title="Work" description="Work in progress, and work that is waiting.">
            <Queues queues={status.queues} />
          </Section>
          {status.slow.length > 0 && (
            <Section title="Slow" description="Work that is taking longer than usual, and recent slow operations.">
              <ul className="divide-y">
                {status.slow.map((work, index) => (
                  <SlowRow key={index} work={work} />
                ))}
              </ul>
            </Section>
          )}
          <Section title="Engine">
            <Engine status={status} />
          </Section>
          <Disk />
          <Section title="Platform">
            <Facts>
              <Fact label="Version">{status.version}</Fact>
              <Fact label="Database">{status.database}</Fact>
              <Fact label="Disk">
                <Room free={status.disk.free} total={status.disk.total} />
              </Fact>
            </Facts>
          </Section>
        </>
      )}
    </Loaded>
  );
}

function Problems({ problems }: { problems: InstanceProblem[] }) {
  if (problems.length === 0)
    return (
      <p className="flex items-center gap-2 px-4 py-3 text-[13px]">
        <CircleCheck className="size-4 text-ok" aria-hidden /> Nothing needs attention.
      </p>
    );
  return (
    <ul className="divide-y" aria-live="polite">
      {problems.map((problem, index) => {
        const Icon = problem.severe ? CircleAlert : TriangleAlert;
        return (
          <li key={index} className="flex flex-wrap items-start gap-x-3 gap-y-1 px-4 py-2.5 text-[13px]">
            <Icon
              className={problem.severe ? "mt-0.5 size-4 text-bad" : "mt-0.5 size-4 text-warn"}
              aria-label={problem.severe ? "Severe" : "Warning"}
            />
            <span className="min-w-0 flex-1 basis-60 break-words">{problem.text}</span>
            <TargetLink target={problem.target} id={problem.targetId} />
          </li>
        );
      })}
    </ul>
  );
}

/** A link to the page on which the problem can be solved. */
function TargetLink({ target, id }: { target: InstanceProblem["target"]; id: string | null }) {
  const style = "text-accent underline underline-offset-2";
  if (target === "sandboxes")
    return (
      <Link to="/sandboxes" search={{ all: true }} className={style}>
        Show sandboxes
      </Link>
    );
  if (target === "models")
    return (
      <Link to="/agents" search={{ tab: "providers" }} className={style}>
        Open model providers
      </Link>
    );
  if (id === null) return null;
  if (target === "sandbox")
    return (
      <Link to="/sandboxes/$sandboxId" params={{ sandboxId: id }} className={style}>
        Open sandbox
      </Link>
    );
  if (target === "session")
    return (
      <Link to="/sessions/$sessionId" params={{ sessionId: id }} className={style}>
        Open session
      </Link>
    );
  if (target === "project")
    return (
      <Link to="/projects/$projectId" params={{ projectId: id }} search={{ tab: "access" }} className={style}>
        Open project
      </Link>
    );
  return null;
}

function Queues({ queues }: { queues: WorkQueue[] }) {
  return (
    <table className="w-full text-[13px]">
      <thead>
        <tr className="border-b text-left text-xs text-soft">
          <th className="px-4 py-2 font-medium">Kind</th>
          <th className="px-2 py-2 text-right font-medium">In progress</th>
          <th className="px-2 py-2 text-right font-medium">Waiting</th>
          <th className="px-4 py-2 text-right font-medium">Longest wait</th>
        </tr>
      </thead>
      <tbody className="divide-y tabular-nums">
        {queues.map((queue) => (
          <tr key={queue.name}>
            <td className="px-4 py-1.5">{QUEUES[queue.name]}</td>
            <td className="px-2 py-1.5 text-right">
              {queue.running}
              {queue.limit !== null && <span className="text-soft"> of {queue.limit}</span>}
            </td>
            <td className="px-2 py-1.5 text-right">{queue.waiting}</td>
            <td className="px-4 py-1.5 text-right">
              {queue.waitingSince ? <Elapsed from={queue.waitingSince} /> : <span className="text-faint">–</span>}
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function SlowRow({ work }: { work: SlowWork }) {
  return (
    <li className="flex flex-wrap items-center gap-x-3 gap-y-1 px-4 py-2 text-[13px]">
      <span className="min-w-0 flex-1 basis-60 break-words">
        {work.text}
        {work.error && <span className="block text-xs text-bad">{work.error}</span>}
      </span>
      <span className="text-xs text-soft tabular-nums">
        {work.since ? (
          <>
            in progress for <Elapsed from={work.since} />
          </>
        ) : (
          work.seconds !== null && `took ${formatPreciseDuration(work.seconds)}`
        )}
      </span>
      <TargetLink target={work.target} id={work.targetId} />
    </li>
  );
}

function Engine({ status }: { status: InstanceStatus }) {
  const { engine, engineError } = status;
  if (engine === null)
    return (
      <p className="px-4 py-3 text-[13px] text-soft">
        {engineError ?? "The sandbox endpoint is not a Sandyard engine, so its status is not available."}
      </p>
    );
  const { sandboxes } = engine;
  const changing = [
    sandboxes.creating > 0 && `${sandboxes.creating} being created`,
    sandboxes.removing > 0 && `${sandboxes.removing} being removed`,
  ].filter(Boolean);
  return (
    <Facts>
      <Fact label="Version">{engine.version}</Fact>
      <Fact label="Sandboxes">
        {[`${sandboxes.running} running`, `${sandboxes.paused} paused`, ...changing].join(", ")}
      </Fact>
      <Fact label="Created in advance">{describePools(engine)}</Fact>
      <Fact label="Isolation">{engine.isolation.map((level) => isolationLabel(level)).join(", ")}</Fact>
      <Fact label="Memory available">{formatSize(engine.memoryAvailable)}</Fact>
      <Fact label="Disk free">{formatSize(engine.diskFree)}</Fact>
      {engine.layerStore && (
        <Fact label="Layer store">
          {engine.layerStore.published} published, {engine.layerStore.pending} waiting
        </Fact>
      )}
      {Object.entries(engine.missing).map(([feature, reason]) => (
        <Fact key={feature} label={MISSING[feature] ?? feature}>
          <span className="break-words text-soft">{reason}</span>
        </Fact>
      ))}
    </Facts>
  );
}

function describePools(engine: EngineReport): string {
  const pools = engine.pools.map(
    (pool) =>
      `${pool.template} (${isolationLabel(pool.isolation)}${pool.containers ? ", containers" : ""}): ${pool.ready} of ${pool.target}`,
  );
  return pools.join("; ") || "none";
}

const formatSize = (bytes: number | null): string => (bytes === null ? "unknown" : formatBytes(bytes));

function Facts({ children }: { children: ReactNode }) {
  return <dl className="grid grid-cols-[auto_1fr] items-baseline gap-x-6 gap-y-2 px-4 py-3 text-[13px]">{children}</dl>;
}

function Fact({ label, children }: { label: string; children: ReactNode }) {
  return (
    <>
      <dt className="text-soft">{label}</dt>
      <dd className="min-w-0">{children}</dd>
    </>
  );
}

/** How much of a disk is used, as a bar, and how much is free. */
function Room({ free, total }: { free: number; total: number }) {
  const used = total > 0 ? (total - free) / total : 0;
  return (
    <span className="flex flex-wrap items-center gap-2">
      <span className="h-2 w-32 overflow-hidden rounded bg-sunken" aria-hidden>
        <span
          className={used > 0.9 ? "block h-full bg-bad" : "block h-full bg-accent"}
          style={{ width: `${used * 100}%` }}
        />
      </span>
      <span className="tabular-nums">
        {formatBytes(free)} free of {formatBytes(total)}
      </span>
    </span>
  );
}
