import { Link, useNavigate, useParams, useSearch } from "@tanstack/react-router";
import { ApiError } from "@/api/client";
import { useAgents } from "@/api/queries/agents";
import { useProjects } from "@/api/queries/projects";
import { useSession } from "@/api/queries/sessions";
import type { Session } from "@/api/types";
import { Workspace } from "@/features/workspace/workspace";
import { agentOfSession } from "@/model/agent-facts";
import { SANDBOXES } from "@/model/status-labels";
import { agentTitle } from "@/model/task-facts";
import { Badge } from "@/ui/badge";
import { useTitle } from "@/ui/page";
import { Empty, Loaded } from "@/ui/states";
import { Status } from "@/ui/status";
import { Ago } from "@/ui/time";
import { SessionMenu } from "./menu";

/** A conversation with an agent, and its sandbox. */
export function SessionPage() {
  const { sessionId } = useParams({ from: "/inside/sessions/$sessionId" });
  const search = useSearch({ from: "/inside/sessions/$sessionId" });
  const navigate = useNavigate({ from: "/sessions/$sessionId" });
  const query = useSession(sessionId);
  const projects = useProjects().data;
  const agents = useAgents().data;
  useTitle(query.data?.title);
  const agentName = (session: Session) => {
    const project = projects?.find((candidate) => candidate.id === session.projectId);
    const agent = agentOfSession(session, agents, project);
    return agent ? agentTitle(agent) : session.agent;
  };
  if (query.error instanceof ApiError && query.error.status === 404) {
    return (
      <Empty
        title="Session not found"
        action={
          <Link to="/sessions" className="text-accent underline">
            Go to sessions
          </Link>
        }
      >
        It was deleted, or you do not have access to it.
      </Empty>
    );
  }
  return (
    <Loaded query={query}>
      {(session) => (
        <div className="flex min-h-0 flex-1 flex-col">
          <header className="flex shrink-0 flex-wrap items-center gap-x-2 gap-y-1 border-b bg-surface px-3 py-2 sm:px-4">
            <h1 className="line-clamp-2 min-w-0 flex-1 basis-48 text-[15px] font-semibold break-words">
              {session.title}
            </h1>
            {/* beside the title on a phone, where the facts are on a line of their own */}
            <span className="sm:order-last">
              <SessionMenu session={session} onDeleted={() => navigate({ to: "/sessions" })} />
            </span>
            <span
              className="flex flex-wrap items-center gap-x-2 gap-y-1 text-xs text-soft max-sm:w-full"
              aria-live="polite"
            >
              {session.archivedAt && <Badge>Archived</Badge>}
              {session.sandbox && (
                <Status status={SANDBOXES[session.sandbox.status]} title={session.sandbox.error ?? undefined} />
              )}
              {session.projectId && (
                <span className="max-w-40 truncate">
                  {projects?.find((project) => project.id === session.projectId)?.name ?? "Unknown project"}
                </span>
              )}
              {(session.agent || agents) && (
                <span>
                  {agentName(session)}
                  {session.model && ` · ${session.model}`}
                </span>
              )}
              {session.taskId && (
                <Link to="/tasks/$taskId" params={{ taskId: session.taskId }} className="text-accent underline">
                  Open task
                </Link>
              )}
              {session.forkedFromId && (
                <Link
                  to="/sessions/$sessionId"
                  params={{ sessionId: session.forkedFromId }}
                  className="text-accent underline"
                >
                  Open original session
                </Link>
              )}
              <Ago at={session.updatedAt} className="text-faint max-sm:hidden" />
            </span>
          </header>
          <Workspace
            key={session.id}
            sessionId={session.id}
            search={search}
            onSearch={(change, replace = false) => navigate({ search: { ...search, ...change }, replace })}
          />
        </div>
      )}
    </Loaded>
  );
}
