import { getRouteApi, useNavigate } from "@tanstack/react-router";
import { Download, ScrollText } from "lucide-react";
import { type FormEvent, useState } from "react";
import { useIsAdmin } from "@/api/queries/account";
import { useAuditLog, useExportAuditLog } from "@/api/queries/platform";
import { useUsers } from "@/api/queries/users";
import type { AuditSearch } from "@/lib/search-params";
import { Button } from "@/ui/button";
import { Field, Input, Select } from "@/ui/field";
import { Page } from "@/ui/page";
import { Empty, Loaded } from "@/ui/states";
import { showError } from "@/ui/toast";
import { Entry } from "./entry";

const route = getRouteApi("/inside/audit");
const EVERYONE = "all";

export function AuditPage() {
  const isAdmin = useIsAdmin();
  return (
    <Page title="Audit log" actions={isAdmin && <Export />}>
      {isAdmin ? <Log /> : <Empty title="Administrators only">The audit log shows who did what on this server.</Empty>}
    </Page>
  );
}

const filtersOf = (search: AuditSearch) => ({ userId: search.user, action: search.action, target: search.target });

/** Downloads all entries that match the filters. */
function Export() {
  const search = route.useSearch();
  const exportLog = useExportAuditLog({ onError: showError("Could not export the audit log") });
  return (
    <Button busy={exportLog.isPending} onClick={() => exportLog.mutate(filtersOf(search))}>
      <Download className="size-3.5" aria-hidden /> Export
    </Button>
  );
}

function Log() {
  const search = route.useSearch();
  const query = useAuditLog(filtersOf(search));
  return (
    <>
      <Filters key={JSON.stringify(search)} search={search} onRefresh={() => query.refetch()} />
      <Loaded query={query}>
        {({ pages }) => {
          const entries = pages.flatMap((page) => page.items);
          return entries.length ? (
            <>
              <ul className="divide-y rounded-lg border bg-surface" aria-label="Entries, newest first">
                {entries.map((entry) => (
                  <Entry key={entry.seq} entry={entry} />
                ))}
              </ul>
              <div className="flex justify-center py-3" aria-live="polite">
                {query.hasNextPage ? (
                  <Button busy={query.isFetchingNextPage} onClick={() => query.fetchNextPage()}>
                    Show older entries
                  </Button>
                ) : (
                  <p className="text-xs text-faint">No older entries.</p>
                )}
              </div>
            </>
          ) : (
            <Empty title="No matching entries" icon={<ScrollText className="size-6" aria-hidden />}>
              No entry matches all filters. Remove a filter.
            </Empty>
          );
        }}
      </Loaded>
    </>
  );
}

function Filters({ search, onRefresh }: { search: AuditSearch; onRefresh: () => void }) {
  const navigate = useNavigate();
  const users = useUsers().data ?? [];
  const [action, setAction] = useState(search.action ?? "");
  const [target, setTarget] = useState(search.target ?? "");
  const applyFilters = (patch: AuditSearch) =>
    navigate({
      to: "/audit",
      search: { ...search, action: action.trim() || undefined, target: target.trim() || undefined, ...patch },
    });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    const same = (search.action ?? "") === action.trim() && (search.target ?? "") === target.trim();
    if (same) onRefresh();
    else void applyFilters({});
  };
  const isFiltered = search.user || search.action || search.target;
  return (
    <form onSubmit={submit} className="mb-3 grid items-end gap-2 sm:grid-cols-[10rem_1fr_1fr_auto]">
      <Field label="User">
        {(control) => (
          <Select
            {...control}
            value={search.user ?? EVERYONE}
            onChange={(id) => applyFilters({ user: id === EVERYONE ? undefined : id })}
            choices={[
              { value: EVERYONE, label: "All users" },
              ...users.map((user) => ({ value: user.id, label: user.name })),
            ]}
          />
        )}
      </Field>
      <Field label="Action">
        {(control) => (
          <Input
            {...control}
            spellCheck={false}
            placeholder="sandbox.execute"
            value={action}
            onChange={(event) => setAction(event.target.value)}
          />
        )}
      </Field>
      <Field label="Target">
        {(control) => (
          <Input
            {...control}
            spellCheck={false}
            placeholder="sbx_…"
            value={target}
            onChange={(event) => setTarget(event.target.value)}
          />
        )}
      </Field>
      <div className="flex gap-2">
        <Button type="submit">Search</Button>
        {isFiltered && (
          <Button look="ghost" onClick={() => navigate({ to: "/audit", search: {} })}>
            Clear
          </Button>
        )}
      </div>
    </form>
  );
}
