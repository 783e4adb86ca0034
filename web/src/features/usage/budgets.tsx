import { Link } from "@tanstack/react-router";
import { useUsageDays } from "@/api/queries/platform";
import type { Project } from "@/api/types";
import { count, ESTIMATED, formatCost } from "@/lib/format";
import { Bar } from "@/ui/bar";
import { Section } from "@/ui/page";
import { Loaded } from "@/ui/states";
import { sumUsage } from "./sums";

/** How much of this month's budget each project has used. Lists only projects with a budget. */
export function Budgets({ projects }: { projects: Project[] }) {
  const limited = projects.filter((project) => {
    const budget = project.settings.tasks?.monthlyBudget;
    return budget?.usd || budget?.tokens;
  });
  const month = `${new Date().toISOString().slice(0, 7)}-01`;
  const query = useUsageDays(month, undefined, { enabled: limited.length > 0 });
  if (!limited.length) return null;
  return (
    <Section
      title="Budgets this month"
      description="Per calendar month in UTC. When a budget is used up, the project's agents can no longer use models."
    >
      <Loaded query={query}>
        {({ items }) => (
          <ul className="divide-y">
            {limited.map((project) => {
              const spent = sumUsage(items.filter((usage) => usage.projectId === project.id));
              const budget = project.settings.tasks?.monthlyBudget;
              return (
                <li key={project.id} className="flex flex-wrap items-center gap-x-5 gap-y-1 px-4 py-2.5">
                  <Link
                    to="/projects/$projectId"
                    params={{ projectId: project.id }}
                    search={{ tab: "board" }}
                    className="min-w-0 basis-40 truncate text-[13px] font-medium hover:text-accent hover:underline"
                  >
                    {project.name}
                  </Link>
                  {budget?.usd && (
                    <Budget
                      name={`Cost of ${project.name}`}
                      spent={spent.cost}
                      limit={budget.usd}
                      format={formatCost}
                      estimated={spent.estimated > 0}
                    />
                  )}
                  {budget?.tokens && (
                    <Budget
                      name={`Tokens of ${project.name}`}
                      spent={spent.input + spent.output}
                      limit={budget.tokens}
                      format={(value) => `${count(value)} tokens`}
                    />
                  )}
                </li>
              );
            })}
          </ul>
        )}
      </Loaded>
    </Section>
  );
}

function Budget({
  name,
  spent,
  limit,
  format,
  estimated = false,
}: {
  name: string;
  spent: number;
  limit: number;
  format: (value: number, estimated?: boolean) => string;
  estimated?: boolean;
}) {
  const part = Math.min(1, spent / limit);
  return (
    <div className="min-w-0 flex-1 basis-48">
      <div className="mb-0.5 flex justify-between gap-2 text-xs text-soft tabular-nums">
        <span title={estimated ? ESTIMATED : undefined}>
          {format(spent, estimated)} of {format(limit)}
        </span>
        <span className={part >= 1 ? "font-medium text-bad" : ""}>
          {part >= 1 ? "used up" : `${Math.round(part * 100)} %`}
        </span>
      </div>
      <Bar label={`${name}: ${format(spent, estimated)} of ${format(limit)}`} part={part} />
    </div>
  );
}
