/** Disk use of the platform and the engine, by kind, and freeing what is no longer needed. */
import { useDisk, useFreeDisk } from "@/api/queries/platform";
import type { DiskEntry, DiskState } from "@/api/types";
import { formatBytes } from "@/lib/format";
import { Button } from "@/ui/button";
import { Confirm } from "@/ui/dialog";
import { Section } from "@/ui/page";
import { Loaded } from "@/ui/states";
import { Ago } from "@/ui/time";
import { showError, toast } from "@/ui/toast";

const KINDS: Record<DiskEntry["place"], Record<string, string>> = {
  engine: {
    sandboxes: "Sandboxes, with those created in advance",
    memory: "Memory of paused sandboxes",
    snapshots: "Snapshots",
    shared: "Data that only snapshots and copies need",
    volumes: "Volumes",
    removing: "Being deleted",
    reserved: "Reserved for new data",
    images: "Layers of images",
    layers: "Fetched layers",
    uploads: "Files uploaded for builds",
    templates: "Versions of templates",
    database: "Database of the engine",
    other: "Other files of the engine",
  },
  platform: {
    database: "Database of the platform",
    output: "Output of commands and agents",
    repositories: "Repositories and checkpoints",
    preparations: "Preparations",
    agents: "Installed agents",
    other: "Other files of the platform",
  },
};

export function Disk() {
  const query = useDisk();
  const removable = query.data ? sumRemovable(query.data) : 0;
  const free = useFreeDisk({
    onSuccess: (removed) => toast.success(`Freed ${formatBytes(sumRemovable(removed))}`),
    onError: showError("Could not free disk space"),
  });
  return (
    <Section
      title="Disk"
      description="Disk use by kind."
      actions={
        query.data?.entries.some((entry) => entry.removable > 0) && (
          <Confirm
            trigger={<Button size="sm">Free {formatBytes(removable)}</Button>}
            title="Free disk space?"
            action="Free"
            onConfirm={() => free.mutateAsync()}
          >
            This removes data that is no longer needed and older than the retention settings, such as replaced
            templates, old output and unused layers of images. Nothing that is in use is removed.
          </Confirm>
        )
      }
    >
      <Loaded query={query}>{(state) => <Entries state={state} />}</Loaded>
    </Section>
  );
}

function Entries({ state }: { state: DiskState }) {
  return (
    <>
      <table className="w-full text-[13px]">
        <thead>
          <tr className="border-b text-left text-xs text-soft">
            <th className="px-4 py-2 font-medium">Kind</th>
            <th className="px-2 py-2 text-right font-medium">Size</th>
            <th className="px-2 py-2 text-right font-medium">Number</th>
            <th className="px-2 py-2 text-right font-medium">Oldest</th>
            <th className="px-4 py-2 text-right font-medium">Can be freed</th>
          </tr>
        </thead>
        <tbody className="divide-y tabular-nums">
          {state.entries.map((entry) => (
            <Row key={`${entry.place} ${entry.kind}`} entry={entry} />
          ))}
        </tbody>
      </table>
      <div className="border-t px-4 py-2 text-xs text-soft tabular-nums">
        {state.rooms.map((room) => (
          <p key={room.place}>
            <span className="font-mono">{room.path}</span>: {formatBytes(room.free)} free of {formatBytes(room.total)}
          </p>
        ))}
        {state.engineError && (
          <p className="break-words text-bad">The engine's data is not included: {state.engineError}</p>
        )}
      </div>
    </>
  );
}

function Row({ entry }: { entry: DiskEntry }) {
  const none = <span className="text-faint">–</span>;
  return (
    <tr>
      <td className="px-4 py-1.5">{KINDS[entry.place][entry.kind] ?? entry.kind}</td>
      <td className="px-2 py-1.5 text-right">
        {entry.bytes === null ? <span className="text-soft">in snapshots</span> : formatBytes(entry.bytes)}
      </td>
      <td className="px-2 py-1.5 text-right">{entry.count ?? none}</td>
      <td className="px-2 py-1.5 text-right">{entry.oldestAt ? <Ago at={entry.oldestAt} /> : none}</td>
      <td className="px-4 py-1.5 text-right">
        {entry.removable > 0
          ? entry.removableBytes === null
            ? entry.removable
            : `${formatBytes(entry.removableBytes)} (${entry.removable})`
          : none}
      </td>
    </tr>
  );
}

const sumRemovable = (state: DiskState): number =>
  state.entries.reduce((sum, entry) => sum + (entry.removableBytes ?? 0), 0);
