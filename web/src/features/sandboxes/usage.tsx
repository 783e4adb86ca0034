import { useEffect, useState } from "react";
import type { Schemas } from "@/api/client";
import { useMetrics } from "@/api/queries/sandboxes";
import { formatBytes } from "@/lib/format";
import { Sparkline } from "@/ui/sparkline";

const POLL_MS = 2000;
const MAX_SAMPLES = 90;

type Sample = Schemas["Usage"];

/** CPU and memory usage of the last minutes, while the page is open. Does not keep the sandbox from pausing. */
export function LiveUsage({ sandboxId, running }: { sandboxId: string; running: boolean }) {
  const [samples, setSamples] = useState<Sample[]>([]);
  const query = useMetrics(sandboxId, { refetchInterval: running ? POLL_MS : false });
  const newest = query.data?.usage;
  useEffect(() => {
    if (newest)
      setSamples((known) => (known.at(-1)?.at === newest.at ? known : [...known, newest].slice(-MAX_SAMPLES)));
  }, [newest]);
  if (!newest) return <p className="text-[13px] text-soft">No data yet.</p>;
  const cpu = samples.flatMap((sample) => (sample.cpuPercent == null ? [] : [sample.cpuPercent]));
  const memory = samples.flatMap((sample) => (sample.memoryBytes == null ? [] : [sample.memoryBytes]));
  const cores = newest.cpuCount ?? 1;
  return (
    <dl className="grid gap-3 sm:grid-cols-2">
      <Chart
        name="CPU"
        value={
          newest.cpuPercent == null
            ? "–"
            : `${newest.cpuPercent.toFixed(0)} % of ${cores} ${cores === 1 ? "core" : "cores"}`
        }
      >
        <Sparkline points={cpu} max={100} label="CPU usage over the last minutes" />
      </Chart>
      <Chart
        name="Memory"
        value={
          newest.memoryBytes == null
            ? "–"
            : `${formatBytes(newest.memoryBytes)}${newest.memoryTotalBytes ? ` of ${formatBytes(newest.memoryTotalBytes)}` : ""}`
        }
      >
        <Sparkline
          points={memory}
          max={newest.memoryTotalBytes ?? 0}
          label="Memory usage over the last minutes"
          tone="var(--info)"
        />
      </Chart>
      {newest.diskBytes != null && newest.diskTotalBytes ? (
        <div className="sm:col-span-2">
          <dt className="text-xs text-soft">
            Disk <span className="text-text tabular-nums">{formatBytes(newest.diskBytes)}</span> of{" "}
            {formatBytes(newest.diskTotalBytes)}
          </dt>
          <dd>
            <meter
              className="h-2 w-full"
              min={0}
              max={newest.diskTotalBytes}
              value={newest.diskBytes}
              aria-label={`Disk: ${formatBytes(newest.diskBytes)} of ${formatBytes(newest.diskTotalBytes)}`}
            />
          </dd>
        </div>
      ) : null}
    </dl>
  );
}

function Chart({ name, value, children }: { name: string; value: string; children: React.ReactNode }) {
  return (
    <div className="rounded-md border p-2">
      <dt className="text-xs text-soft">
        {name} <span className="text-text tabular-nums">{value}</span>
      </dt>
      <dd>{children}</dd>
    </div>
  );
}
