import { getRouteApi, Link, useNavigate } from "@tanstack/react-router";
import { FolderGit2, Plus, Settings2 } from "lucide-react";
import { useState } from "react";
import { useArchivedProjects, useProjects } from "@/api/queries/projects";
import { useTaskCounts } from "@/api/queries/tasks";
import type { Column, Project } from "@/api/types";
import { Badge } from "@/ui/badge";
import { Button } from "@/ui/button";
import { Switch } from "@/ui/field";
import { Page } from "@/ui/page";
import { Empty, Loaded } from "@/ui/states";
import { Ago } from "@/ui/time";
import { AddProject } from "./add-project";
import { SampleButton } from "./sample-button";

const route = getRouteApi("/inside/projects");

export function ProjectsPage() {
  const { archived = false } = route.useSearch();
  const navigate = useNavigate();
  const setArchived = (on: boolean) => navigate({ to: "/projects", search: on ? { archived: true } : {} });
  const [adding, setAdding] = useState(false);
  const active = useProjects();
  const archivedProjects = useArchivedProjects({ enabled: archived });
  const counts = useTaskCounts();
  return (
    <Page
      title="Projects"
      actions={
        <>
          <Switch checked={archived} onChange={setArchived} label="Archived" />
          <Button look="primary" onClick={() => setAdding(true)}>
            <Plus className="size-4" aria-hidden /> Add a project
          </Button>
        </>
      }
    >
      <Loaded query={archived ? archivedProjects : active}>
        {(found) =>
          found.length ? (
            <ul className="divide-y rounded-lg border bg-surface">
              {found.map((project) => (
                <ProjectRow
                  key={project.id}
                  project={project}
                  counts={counts.data && (counts.data.get(project.id) ?? NO_CARDS)}
                />
              ))}
            </ul>
          ) : archived ? (
            <Empty title="No archived projects">Projects that are archived in their settings are listed here.</Empty>
          ) : (
            <NoProjects onAdd={() => setAdding(true)} />
          )
        }
      </Loaded>
      <AddProject open={adding} onOpenChange={setAdding} />
    </Page>
  );
}

interface Counts {
  columns: Partial<Record<Column, number>>;
  failed: number;
}
const NO_CARDS: Counts = { columns: {}, failed: 0 };

function ProjectRow({ project, counts }: { project: Project; counts: Counts | undefined }) {
  const { columns, failed } = counts ?? NO_CARDS;
  const inProgress = columns.in_progress ?? 0;
  const running = inProgress - failed;
  const open = inProgress + (columns.backlog ?? 0) + (columns.in_review ?? 0);
  return (
    <li className="flex flex-wrap items-center gap-x-4 gap-y-1 px-4 py-2.5">
      <div className="min-w-0 flex-1 basis-56">
        <Link
          to="/board"
          search={{ project: project.id }}
          className="font-medium hover:text-accent hover:underline"
          title="Open board"
        >
          {project.name}
        </Link>
        <p className="truncate font-mono text-xs text-soft" title={project.repository ?? undefined}>
          {project.repository ?? "no repository"}
        </p>
      </div>
      <div className="flex flex-wrap items-center gap-2 text-xs text-soft">
        {project.connectionError && (
          <Badge tone="bad" title={project.connectionError}>
            Can't reach the repository
          </Badge>
        )}
        <Badge title="The branch that work starts from">{project.baseBranch ?? "default branch"}</Badge>
        {counts && (
          <span className="tabular-nums">
            {running > 0 && <strong className="font-medium text-info">{running} in progress · </strong>}
            {failed > 0 && <strong className="font-medium text-bad">{failed} failed · </strong>}
            {open} open
          </span>
        )}
        {project.archivedAt && (
          <span>
            archived <Ago at={project.archivedAt} />
          </span>
        )}
      </div>
      <Link
        to="/projects/$projectId"
        params={{ projectId: project.id }}
        aria-label={`Settings for ${project.name}`}
        className="inline-flex h-7 items-center gap-1.5 rounded-md border border-line-strong px-2 text-xs font-medium hover:bg-hover"
      >
        <Settings2 className="size-3.5" aria-hidden /> Settings
      </Link>
    </li>
  );
}

function NoProjects({ onAdd }: { onAdd: () => void }) {
  return (
    <Empty
      title="No projects yet"
      icon={<FolderGit2 className="size-6" aria-hidden />}
      action={
        <div className="flex flex-wrap justify-center gap-2">
          <Button look="primary" onClick={onAdd}>
            Add a repository
          </Button>
          <SampleButton />
        </div>
      }
    >
      A project is a repository with settings for the agents that work on it. Add your own, or try the sample
      repository.
    </Empty>
  );
}
