import { getRouteApi, useNavigate } from "@tanstack/react-router";
import { ChartNoAxesColumn } from "lucide-react";
import { useUsageDays } from "@/api/queries/platform";
import { useProjects } from "@/api/queries/projects";
import type { Project } from "@/api/types";
import { count, ESTIMATED, formatCost, pluralize } from "@/lib/format";
import { Select } from "@/ui/field";
import { Page, Section } from "@/ui/page";
import { Empty, Loaded } from "@/ui/states";
import { Budgets } from "./budgets";
import { DayBars, MAX_SERIES, TotalsTable } from "./charts";
import { type DayUsage, daysUpTo, groupUsage, type Metric, sumUsage } from "./sums";

const route = getRouteApi("/inside/usage");
const RANGES = [7, 30, 90];
const ALL = "all";

export function UsagePage() {
  const search = route.useSearch();
  const navigate = useNavigate();
  const projects = useProjects().data ?? [];
  const range = RANGES.find((candidate) => candidate === search.days) ?? 30;
  const days = daysUpTo(Date.now(), range);
  const query = useUsageDays(days[0] ?? "", search.project);
  const metric: Metric = search.show ?? "cost";
  return (
    <Page
      title="Usage and cost"
      actions={
        <>
          <Select
            label="Project"
            className="!w-44"
            value={search.project ?? ALL}
            onChange={(id) => navigate({ to: "/usage", search: { ...search, project: id === ALL ? undefined : id } })}
            choices={[
              { value: ALL, label: "All projects" },
              ...projects.map((project) => ({ value: project.id, label: project.name })),
            ]}
          />
          <Select
            label="Range"
            className="!w-32"
            value={String(range)}
            onChange={(value) => navigate({ to: "/usage", search: { ...search, days: Number(value) } })}
            choices={RANGES.map((item) => ({ value: String(item), label: `${item} days` }))}
          />
          <Select
            label="Metric"
            className="!w-28"
            value={metric}
            onChange={(value) =>
              navigate({ to: "/usage", search: { ...search, show: value === "tokens" ? value : undefined } })
            }
            choices={[
              { value: "cost", label: "Cost" },
              { value: "tokens", label: "Tokens" },
            ]}
          />
        </>
      }
    >
      <Loaded query={query}>
        {({ items, truncated }) => (
          <>
            {truncated && (
              <p className="mb-2 text-xs text-warn">Some data is not shown: the oldest days are missing.</p>
            )}
            <Charts items={items} days={days} metric={metric} projects={projects} />
          </>
        )}
      </Loaded>
      <Budgets projects={projects.filter((project) => !search.project || project.id === search.project)} />
    </Page>
  );
}

function Charts({
  items,
  days,
  metric,
  projects,
}: {
  items: DayUsage[];
  days: string[];
  metric: Metric;
  projects: Project[];
}) {
  const format = metric === "cost" ? formatCost : count;
  const project = (id: string | null) =>
    projects.find((candidate) => candidate.id === id)?.name ?? (id ? "other project" : "no project");
  const byModel = groupUsage(items, days, metric, (usage) => usage.model ?? "unknown model", MAX_SERIES);
  const byProject = groupUsage(items, days, metric, (usage) => project(usage.projectId), 12);
  const sum = sumUsage(items);
  if (!items.length) {
    return (
      <Empty title="No usage" icon={<ChartNoAxesColumn className="size-6" aria-hidden />}>
        No agent used a model in this period. The demo agent needs no model.
      </Empty>
    );
  }
  return (
    <>
      <dl className="mb-5 grid grid-cols-2 gap-px overflow-hidden rounded-lg border bg-line sm:grid-cols-4">
        <Total
          name="Cost"
          value={formatCost(sum.cost, sum.estimated > 0)}
          title={sum.estimated ? ESTIMATED : undefined}
          note={
            [
              sum.unpriced ? `${count(sum.unpriced)} requests have no price` : "",
              sum.estimated ? `${pluralize(sum.estimated, "request")} estimated` : "",
            ]
              .filter(Boolean)
              .join(", ") || undefined
          }
        />
        <Total name="Requests" value={count(sum.calls)} />
        <Total
          name="Input tokens"
          value={count(sum.input)}
          note={sum.cached ? `${count(sum.cached)} from cache` : undefined}
        />
        <Total name="Output tokens" value={count(sum.output)} />
      </dl>
      <Section title={metric === "cost" ? "Cost by day" : "Tokens by day"} description="By model. Days are in UTC.">
        <DayBars
          title={metric === "cost" ? "Cost by day and model" : "Tokens by day and model"}
          days={days}
          series={byModel}
          format={format}
        />
      </Section>
      <div className="grid gap-x-5 md:grid-cols-2">
        <Section title="By model">
          <TotalsTable
            title="By model"
            rows={byModel.map((series) => ({ ...series, name: series.key }))}
            format={format}
          />
        </Section>
        <Section title="By project">
          <TotalsTable
            title="By project"
            rows={byProject.map((series) => ({ ...series, name: series.key }))}
            format={format}
          />
        </Section>
      </div>
    </>
  );
}

function Total({
  name,
  value,
  note,
  title,
}: {
  name: string;
  value: string;
  note?: string | undefined;
  title?: string | undefined;
}) {
  return (
    <div className="bg-surface px-4 py-3" title={title}>
      <dt className="text-xs text-soft">{name}</dt>
      <dd className="text-lg font-semibold tabular-nums">{value}</dd>
      {note && <dd className="text-2xs text-faint">{note}</dd>}
    </div>
  );
}
