import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import clsx from "clsx";
import { Container } from "lucide-react";
import { useState } from "react";
import { useIsAdmin } from "@/api/queries/account";
import { type SandboxAction, useSandboxes } from "@/api/queries/sandboxes";
import { useUsers } from "@/api/queries/users";
import type { ListedSandbox, Sandbox } from "@/api/types";
import { formatBytes } from "@/lib/format";
import { isolationLabel } from "@/model/isolation";
import { SANDBOXES } from "@/model/status-labels";
import { Button } from "@/ui/button";
import { Confirm } from "@/ui/dialog";
import { Checkbox, Select, Switch } from "@/ui/field";
import { Page } from "@/ui/page";
import { Empty, Loaded } from "@/ui/states";
import { Status } from "@/ui/status";
import { Ago } from "@/ui/time";
import { isAllowed, useSandboxAction } from "./actions";

const STATUSES = ["provisioning", "running", "paused", "error", "destroyed"] as const;

/** Snapshot ids of prepared sandboxes, which are not shown because they mean nothing to people. */
const SNAPSHOT = /^s[a-z0-9]{19}(:|$)/;

/** All visible sandboxes, with bulk actions. */
export function SandboxesPage() {
  const search = useSearch({ from: "/inside/sandboxes" });
  const navigate = useNavigate({ from: "/sandboxes" });
  const status = STATUSES.find((value) => value === search.status);
  const isAdmin = useIsAdmin();
  const query = useSandboxes(status, search.all ?? false);
  return (
    <Page
      title="Sandboxes"
      wide
      actions={
        <>
          <Switch
            label={isAdmin ? "All users" : "Include other users"}
            checked={search.all ?? false}
            onChange={(on) => navigate({ search: { ...search, all: on || undefined } })}
          />
          <Select
            label="Status"
            className="!w-36"
            value={status ?? "any"}
            onChange={(value) => navigate({ search: { ...search, status: value === "any" ? undefined : value } })}
            choices={[
              { value: "any", label: "Any status" },
              ...STATUSES.map((value) => ({ value: value, label: SANDBOXES[value].text })),
            ]}
          />
        </>
      }
    >
      <Loaded query={query}>{(rows) => <SandboxList rows={rows} all={search.all ?? false} />}</Loaded>
      {query.hasNextPage && (
        <div className="mt-3 text-center">
          <Button busy={query.isFetchingNextPage} onClick={() => query.fetchNextPage()}>
            Show more
          </Button>
        </div>
      )}
    </Page>
  );
}

function SandboxList({ rows, all }: { rows: ListedSandbox[]; all: boolean }) {
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set());
  const users = useUsers({ enabled: all, retry: false });
  const userName = (id: string) => users.data?.find((user) => user.id === id)?.name ?? id;
  if (rows.length === 0)
    return (
      <Empty title="No sandboxes" icon={<Container className="size-6" aria-hidden />}>
        Each session has its own sandbox. It appears here when an agent starts.
      </Empty>
    );
  const selected = rows.filter((row) => chosen.has(row.id));
  const toggle = (id: string, on: boolean) => {
    const next = new Set(chosen);
    if (on) next.add(id);
    else next.delete(id);
    setChosen(next);
  };
  return (
    <>
      <div className="mb-2 flex min-h-8 flex-wrap items-center gap-2">
        <Checkbox
          label="Select all"
          checked={selected.length === rows.length}
          onChange={(on) => setChosen(new Set(on ? rows.map((row) => row.id) : []))}
        />
        <span className="text-xs text-soft" aria-live="polite">
          {selected.length ? `${selected.length} selected` : ""}
        </span>
        <BulkAction action="pause" rows={selected} />
        <BulkAction action="resume" rows={selected} />
        <BulkAction action="destroy" rows={selected} />
      </div>
      <ul className="divide-y rounded-lg border bg-surface">
        {rows.map((row) => (
          <li key={row.id} className="flex flex-wrap items-center gap-x-3 gap-y-1 px-3 py-2">
            <Checkbox
              hidden
              label={`Select ${row.title ?? row.id}`}
              checked={chosen.has(row.id)}
              onChange={(on) => toggle(row.id, on)}
            />
            <Link
              to="/sandboxes/$sandboxId"
              params={{ sandboxId: row.id }}
              title={row.id}
              className={clsx(
                "min-w-0 flex-1 basis-[calc(100%-2rem)] truncate hover:underline sm:flex-none sm:basis-auto",
                row.title ? "text-[13px] font-medium" : "font-mono text-xs text-accent",
              )}
            >
              {row.title ?? row.id}
            </Link>
            <Status status={SANDBOXES[row.status]} />
            {row.projectName && <span className="max-w-40 truncate text-xs text-soft">{row.projectName}</span>}
            {!SNAPSHOT.test(row.template) && <span className="text-xs text-faint">{row.template}</span>}
            {row.isolation && <span className="text-xs text-faint">{isolationLabel(row.isolation)}</span>}
            {row.taskId ? (
              <Link to="/tasks/$taskId" params={{ taskId: row.taskId }} className="text-xs text-accent hover:underline">
                task
              </Link>
            ) : (
              row.sessionId && (
                <Link
                  to="/sessions/$sessionId"
                  params={{ sessionId: row.sessionId }}
                  className="text-xs text-accent hover:underline"
                >
                  session
                </Link>
              )
            )}
            {row.error && <span className="min-w-0 truncate text-xs text-bad">{row.error}</span>}
            <span className="ml-auto flex gap-3 text-xs text-faint tabular-nums">
              {all && <span>{userName(row.ownerId)}</span>}
              {row.usage?.memoryBytes != null && <span>{formatBytes(row.usage.memoryBytes)}</span>}
              <Ago at={row.usedAt ?? row.createdAt} />
            </span>
          </li>
        ))}
      </ul>
    </>
  );
}

const LABELS: Partial<Record<SandboxAction, string>> = { pause: "Pause", resume: "Resume", destroy: "Delete" };

/** Apply an action to the selected sandboxes whose status allows it. */
function BulkAction({ action, rows }: { action: SandboxAction; rows: Sandbox[] }) {
  const apply = useSandboxAction();
  const ids = rows.filter((row) => isAllowed(action, row.status)).map((row) => row.id);
  if (!ids.length) return null;
  const text = `${LABELS[action]} ${ids.length}`;
  if (action !== "destroy")
    return (
      <Button size="sm" busy={apply.isPending} onClick={() => apply.mutate({ action, ids })}>
        {text}
      </Button>
    );
  return (
    <Confirm
      trigger={
        <Button size="sm" look="danger">
          {text}
        </Button>
      }
      title={ids.length === 1 ? "Delete this sandbox?" : `Delete ${ids.length} sandboxes?`}
      action="Delete"
      onConfirm={() => apply.mutateAsync({ action, ids })}
    >
      Processes and files are deleted. Branches, checkpoints and conversations are kept.
    </Confirm>
  );
}
