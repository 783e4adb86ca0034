import { useProjects } from "@/api/queries/projects";
import type { Project } from "@/api/types";
import { Button } from "@/ui/button";
import { findByRepository } from "./names";

/** Say that a project with this repository exists already, and offer to use it. Renders nothing otherwise. */
export function KnownRepository({ repository, onUse }: { repository: string; onUse: (project: Project) => void }) {
  const project = findByRepository(useProjects().data, repository);
  if (!project) return null;
  return (
    <p
      role="note"
      className="flex flex-wrap items-center gap-2 rounded-md bg-info-soft px-2.5 py-1.5 text-[13px] sm:col-span-2"
    >
      <span className="min-w-0 flex-1 basis-48">The project {project.name} has this repository already.</span>
      <Button size="sm" onClick={() => onUse(project)}>
        Use {project.name}
      </Button>
    </p>
  );
}
