import { Link } from "@tanstack/react-router";
import { useHealth } from "@/api/queries/platform";
import { formatDuration } from "@/lib/format";
import type { StatusLabel } from "@/model/status-labels";
import { Button } from "@/ui/button";
import { Section } from "@/ui/page";
import { Loaded } from "@/ui/states";
import { Status } from "@/ui/status";

const BREAKER: Record<string, StatusLabel> = {
  closed: { text: "Healthy", tone: "ok" },
  half_open: { text: "Retrying", tone: "warn", busy: true },
  open: { text: "Not responding", tone: "bad" },
};

export function About() {
  const query = useHealth();
  return (
    <Section
      title="About"
      actions={
        <Button size="sm" busy={query.isFetching} onClick={() => query.refetch()}>
          Check again
        </Button>
      }
    >
      <Loaded query={query}>
        {(health) => (
          <dl
            className="grid grid-cols-[auto_1fr] items-center gap-x-6 gap-y-2 px-4 py-3 text-[13px]"
            aria-live="polite"
          >
            <dt className="text-soft">Version</dt>
            <dd className="font-mono text-xs">{health.version}</dd>
            <dt className="text-soft">Platform</dt>
            <dd className="flex flex-wrap items-center gap-2">
              <Status
                status={health.status === "ok" ? { text: "Healthy", tone: "ok" } : { text: "Degraded", tone: "warn" }}
              />
              <span className="text-xs text-soft tabular-nums">up for {formatDuration(health.uptimeSeconds)}</span>
            </dd>
            <dt className="text-soft">Database</dt>
            <dd className="flex flex-wrap items-center gap-2">
              <Status
                status={health.database.ok ? { text: "Healthy", tone: "ok" } : { text: "Not responding", tone: "bad" }}
              />
              {health.database.reason && <span className="text-xs text-soft">{health.database.reason}</span>}
            </dd>
            <dt className="text-soft">Engine</dt>
            <dd className="flex flex-wrap items-center gap-2">
              <Status
                status={
                  health.engine.configured
                    ? (BREAKER[health.engine.breaker] ?? { text: health.engine.breaker, tone: "idle" })
                    : { text: "Not configured", tone: "bad" }
                }
              />
              {health.engine.reason && <span className="text-xs break-words text-soft">{health.engine.reason}</span>}
            </dd>
            <dt className="text-soft">Documentation</dt>
            <dd>
              <Link to="/help" className="text-accent underline underline-offset-2">
                Help
              </Link>
            </dd>
            <dt className="text-soft">API</dt>
            <dd>
              <a
                href="/api/v1/openapi.json"
                target="_blank"
                rel="noreferrer noopener"
                className="text-accent underline underline-offset-2"
              >
                OpenAPI document
              </a>
            </dd>
          </dl>
        )}
      </Loaded>
    </Section>
  );
}
