import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { MessagesSquare, Plus } from "lucide-react";
import { useAgents } from "@/api/queries/agents";
import { useProjects } from "@/api/queries/projects";
import { useSessions } from "@/api/queries/sessions";
import type { Session } from "@/api/types";
import { titleOf } from "@/model/agent-facts";
import { SANDBOXES } from "@/model/status-labels";
import { Button } from "@/ui/button";
import { Select, Switch } from "@/ui/field";
import { Page } from "@/ui/page";
import { Empty, Loaded } from "@/ui/states";
import { Status } from "@/ui/status";
import { Ago } from "@/ui/time";
import { SessionMenu } from "./menu";
import { NewSessionDialog } from "./new-session";

const ALL = "all";

/** Conversations with agents outside tasks. */
export function SessionsPage() {
  const search = useSearch({ from: "/inside/sessions" });
  const navigate = useNavigate({ from: "/sessions" });
  const projects = useProjects().data ?? [];
  const archived = search.archived ?? false;
  const query = useSessions(search.project, archived);
  const newButton = (
    <Button look="primary" onClick={() => navigate({ search: { ...search, new: true } })}>
      <Plus className="size-4" aria-hidden /> New session
    </Button>
  );
  return (
    <Page title="Sessions" actions={(archived || Boolean(query.data?.length)) && newButton}>
      <div className="mb-3 flex flex-wrap items-center gap-3">
        <Select
          label="Project"
          className="!w-52"
          value={search.project ?? ALL}
          onChange={(value) => navigate({ search: { ...search, project: value === ALL ? undefined : value } })}
          choices={[
            { value: ALL, label: "All projects" },
            ...projects.map((project) => ({ value: project.id, label: project.name })),
          ]}
        />
        <Switch
          label="Archived"
          checked={archived}
          onChange={(on) => navigate({ search: { ...search, archived: on || undefined } })}
        />
      </div>
      <Loaded query={query}>
        {(sessions) =>
          sessions.length ? (
            <ul className="divide-y rounded-lg border bg-surface">
              {sessions.map((session) => (
                <SessionRow
                  key={session.id}
                  session={session}
                  project={projects.find((other) => other.id === session.projectId)?.name}
                />
              ))}
            </ul>
          ) : (
            <Empty
              title={archived ? "No archived sessions" : "No sessions"}
              icon={<MessagesSquare className="size-6" aria-hidden />}
              action={archived ? undefined : newButton}
            >
              {archived
                ? "Archived sessions are listed here."
                : "A session is a conversation with an agent in a sandbox with your repository. It has no card on the board."}
            </Empty>
          )
        }
      </Loaded>
      <NewSessionDialog
        open={search.new ?? false}
        onOpenChange={(open) => navigate({ search: { ...search, new: open || undefined } })}
        projectId={search.project}
      />
    </Page>
  );
}

function SessionRow({ session, project }: { session: Session; project: string | undefined }) {
  const agents = useAgents().data;
  return (
    <li className="flex items-center gap-2 px-3 py-2 hover:bg-hover">
      <div className="min-w-0 flex-1">
        <Link
          to="/sessions/$sessionId"
          params={{ sessionId: session.id }}
          className="block truncate font-medium underline-offset-2 hover:underline"
        >
          {session.title}
        </Link>
        <p className="flex flex-wrap gap-x-2 text-xs text-soft">
          <span>{project ?? (session.projectId ? "Unknown project" : "No project")}</span>
          {session.agent && (
            <span>
              {titleOf(session.agent, agents)}
              {session.model && ` · ${session.model}`}
            </span>
          )}
          <Ago at={session.updatedAt} className="text-faint" />
        </p>
      </div>
      {session.sandbox && (
        <Status status={SANDBOXES[session.sandbox.status]} title={session.sandbox.error ?? undefined} />
      )}
      <SessionMenu session={session} />
    </li>
  );
}
