import { Link } from "@tanstack/react-router";
import clsx from "clsx";
import { Info } from "lucide-react";
import type { Project } from "@/api/types";

/** Why a project's branches get no pull requests, and where that is changed; nothing for a project whose branches do. */
export function ForgeNote({
  project,
  className,
  linked = true,
  from,
}: {
  project: Project;
  className?: string;
  linked?: boolean;
  /** Where the settings lead back to. */
  from?: "welcome";
}) {
  if (!project.forgeNote) return null;
  return (
    <p
      role="note"
      className={clsx("flex items-start gap-2 rounded-md bg-warn-soft px-2.5 py-1.5 text-[13px]", className)}
    >
      <Info className="mt-0.5 size-4 shrink-0 text-warn" aria-hidden />
      <span className="min-w-0 [overflow-wrap:anywhere]">
        {project.forgeNote}{" "}
        {linked && (
          <Link
            to="/projects/$projectId"
            params={{ projectId: project.id }}
            search={{ tab: "forge", from }}
            className="whitespace-nowrap text-accent underline underline-offset-2"
          >
            Git and forge settings
          </Link>
        )}
      </span>
    </p>
  );
}
