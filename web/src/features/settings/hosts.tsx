import { Plus } from "lucide-react";
import { useState } from "react";
import { ApiError } from "@/api/client";
import { useCreateJoinToken, useHosts, useRecoverHost, useUpdateHost } from "@/api/queries/hosts";
import type { Host, HostSource } from "@/api/types";
import { formatBytes, pluralize } from "@/lib/format";
import type { StatusLabel } from "@/model/status-labels";
import { Badge } from "@/ui/badge";
import { Bar } from "@/ui/bar";
import { Button } from "@/ui/button";
import { CopyButton } from "@/ui/code";
import { Confirm, Dialog } from "@/ui/dialog";
import { Section } from "@/ui/page";
import { Empty, ErrorState, errorMessage, Loaded } from "@/ui/states";
import { Status } from "@/ui/status";
import { Ago } from "@/ui/time";
import { showError } from "@/ui/toast";
import { LabelsButton } from "./host-labels";

const STATES: Record<string, StatusLabel> = {
  ready: { text: "Ready", tone: "ok" },
  connecting: { text: "Connecting", tone: "info", busy: true },
  unreachable: { text: "Not responding", tone: "bad" },
};
const DRAINING: StatusLabel = { text: "Draining", tone: "warn" };
const STATIC = "static"; // the source of hosts that administrators let join
const LOST: StatusLabel = { text: "Lost", tone: "bad" };

/** The machines that run sandboxes: their state and free resources, and adding, draining and recovering them. */
export function Hosts() {
  const query = useHosts();
  const [adding, setAdding] = useState(false);
  const isUnavailable = query.error instanceof ApiError && query.error.code === "hosts_not_available";
  return (
    <Section
      title="Hosts"
      description="Machines that run sandboxes."
      actions={
        query.data && (
          <Button size="sm" onClick={() => setAdding(true)}>
            <Plus className="size-3.5" aria-hidden /> Add a host
          </Button>
        )
      }
    >
      {isUnavailable ? (
        <Empty title="No hosts to manage">{errorMessage(query.error)}</Empty>
      ) : (
        <Loaded query={query}>
          {({ items, sources }) => (
            <ul className="divide-y">
              {items.map((host) => (
                <HostRow key={host.id} host={host} />
              ))}
              <Problems sources={sources} />
            </ul>
          )}
        </Loaded>
      )}
      <Dialog
        open={adding}
        onOpenChange={setAdding}
        title="Add a host"
        description="A Linux machine that this server can reach over the network. Install the same version of Sandyard there."
      >
        {adding && <NewHost accepts={query.data?.acceptsHosts ?? false} onDone={() => setAdding(false)} />}
      </Dialog>
    </Section>
  );
}

function HostRow({ host }: { host: Host }) {
  const change = useUpdateHost({ onError: showError(`Could not change ${host.name}`) });
  const recover = useRecoverHost({ onError: showError(`Could not recover the sandboxes of ${host.name}`) });
  const state = findState(host);
  const reason = host.reason ?? host.room?.full;
  return (
    <li className="flex flex-col gap-2 px-4 py-3">
      <div className="flex flex-wrap items-center gap-x-3 gap-y-2">
        <div className="min-w-0 flex-1 basis-48">
          <p className="flex flex-wrap items-center gap-2 text-[13px] font-medium">
            <span className="truncate">{host.local ? "This server" : host.name}</span>
            <Status status={state} />
            {Object.entries(host.labels).map(([key, value]) => (
              <Badge key={key}>{`${key}=${value}`}</Badge>
            ))}
          </p>
          <p className="text-xs text-soft tabular-nums">
            {pluralize(host.sandboxes, "sandbox", "sandboxes")}
            {host.version && ` · version ${host.version}`}
            {!host.local && ` · ${host.address}`}
            {!host.local && host.source && host.source !== STATIC && ` · from ${formatSource(host.source)}`}
            {host.room && ` · ${pluralize(host.room.cpuCount, "CPU", "CPUs")}, load ${host.room.load.toFixed(1)}`}
          </p>
        </div>
        {host.state === "unreachable" && !host.lost && host.checkpoints.count > 0 && (
          <Confirm
            trigger={
              <Button size="sm" aria-label={`Recover sandboxes of ${host.name}`}>
                Recover
              </Button>
            }
            title={`Is ${host.name} lost?`}
            action="Recover"
            onConfirm={() => recover.mutateAsync(host.id)}
          >
            {`${host.checkpoints.count} of ${pluralize(host.sandboxes, "sandbox", "sandboxes")} can continue on other hosts, with files from `}
            {host.checkpoints.oldest && <Ago at={host.checkpoints.oldest} />}
            {" or later. Everything written after that is lost. The others are kept in case the host returns."}
          </Confirm>
        )}
        {!host.local && <LabelsButton host={host} />}
        {!host.local &&
          (host.draining ? (
            <Button
              size="sm"
              busy={change.isPending}
              onClick={() => change.mutate({ id: host.id, draining: false })}
              aria-label={`Use ${host.name} again`}
            >
              Use again
            </Button>
          ) : (
            <Confirm
              trigger={
                <Button size="sm" aria-label={`Drain ${host.name}`}>
                  Drain
                </Button>
              }
              title={`Drain ${host.name}?`}
              action="Drain"
              onConfirm={() => change.mutateAsync({ id: host.id, draining: true, evacuating: true })}
            >
              No new sandboxes are placed on this host, and its sandboxes are moved to other hosts. They keep their
              files, but their processes end.
            </Confirm>
          ))}
      </div>
      {reason && (
        <p className="text-xs break-words text-bad">
          {reason}
          {host.state === "unreachable" && host.seenAt && (
            <>
              {" "}
              Last response <Ago at={host.seenAt} />. Its sandboxes are kept.
            </>
          )}
          {host.missingFromSource && host.source && ` ${formatSource(host.source)} no longer lists it.`}
        </p>
      )}
      {host.evacuation && <Evacuation {...host.evacuation} />}
      <Room host={host} />
    </li>
  );
}

/** Why the lists of sources may be out of date, and why some of their machines are not hosts. */
function Problems({ sources }: { sources: HostSource[] }) {
  const problems = sources.flatMap((source) => [
    ...(source.problem ? [source.problem] : []),
    ...source.machines.flatMap(({ name, problem }) =>
      problem ? [`${name} (${formatSource(source.name)}) is not a host: ${problem}`] : [],
    ),
  ]);
  return problems.map((problem) => (
    <li key={problem} className="px-4 py-3 text-xs break-words text-bad">
      {problem}
    </li>
  ));
}

function formatSource(name: string): string {
  if (name === "ray") return "Ray";
  return name === "kubernetes" ? "Kubernetes" : name;
}

function findState(host: Host): StatusLabel {
  if (host.lost) return LOST;
  if (host.draining && host.state === "ready") return DRAINING;
  return STATES[host.state] ?? { text: host.state, tone: "idle" };
}

function Evacuation({ moved, total, failures }: NonNullable<Host["evacuation"]>) {
  const reasons = Object.entries(failures);
  return (
    <div className="text-xs text-soft" aria-live="polite">
      <p>{`${moved} of ${pluralize(total, "sandbox", "sandboxes")} moved`}</p>
      {reasons.map(([id, reason]) => (
        <p key={id} className="break-words text-bad">
          {`${id} was not moved: ${reason}`}
        </p>
      ))}
    </div>
  );
}

function Room({ host: { name, room } }: { host: Host }) {
  if (!room) return null;
  return (
    <div className="flex flex-wrap gap-x-6 gap-y-2">
      <Used name={`Memory of ${name}`} title="memory" free={room.memoryAvailable} total={room.memoryTotal} />
      <Used name={`Disk of ${name}`} title="disk" free={room.diskFree} total={room.diskTotal} />
    </div>
  );
}

function Used(props: { name: string; title: string; free: number | null; total: number | null }) {
  const { name, title, free, total } = props;
  if (free === null || !total) return null;
  const used = total - free;
  return (
    <div className="min-w-0 flex-1 basis-48">
      <div className="mb-0.5 flex justify-between gap-2 text-xs text-soft tabular-nums">
        <span>{`${formatBytes(used)} of ${formatBytes(total)} ${title} used`}</span>
        <span>{`${formatBytes(free)} free`}</span>
      </div>
      <Bar label={`${name}: ${formatBytes(used)} of ${formatBytes(total)} used`} part={used / total} badAt={0.95} />
    </div>
  );
}

function NewHost({ accepts, onDone }: { accepts: boolean; onDone: () => void }) {
  const create = useCreateJoinToken();
  if (!accepts)
    return (
      <div className="flex flex-col gap-2 text-[13px]">
        <p>
          This server does not accept hosts yet. Restart it with the address at which other machines can reach it. This
          opens port 3010 for them:
        </p>
        <Command text="sandyard up --join-address ADDRESS" />
      </div>
    );
  if (create.error) return <ErrorState error={create.error} retry={() => create.mutate()} />;
  if (!create.data)
    return (
      <div className="flex flex-col gap-3 text-[13px]">
        <p>A token lets one machine join within an hour. Create a new one for each machine.</p>
        <div className="flex justify-end">
          <Button look="primary" busy={create.isPending} onClick={() => create.mutate()}>
            Create a token
          </Button>
        </div>
      </div>
    );
  return (
    <div className="flex flex-col gap-3 text-[13px]">
      <p>{`1. Run this as root on the new machine, which must be able to connect to ${create.data.address}. The token is not shown again.`}</p>
      <Command text={`sandyard host join ${create.data.token}`} />
      <p>2. Start the host service there. This server must be able to connect to port 3011 of the new machine.</p>
      <Command text="sandyard host serve" />
      <p className="text-soft">The new host appears in the list, and is used for sandboxes when it is ready.</p>
      <div className="flex justify-end">
        <Button look="primary" onClick={onDone}>
          Done
        </Button>
      </div>
    </div>
  );
}

function Command({ text }: { text: string }) {
  return (
    <div className="flex items-center gap-2 rounded-md border bg-sunken px-3 py-2">
      <code className="min-w-0 flex-1 font-mono text-xs break-all">{text}</code>
      <CopyButton text={text} label={`Copy ${text.split(" ").slice(0, 3).join(" ")}`} />
    </div>
  );
}
