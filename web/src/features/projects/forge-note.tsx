import { Link } from "@tanstack/react-router";
import clsx from "clsx";
import { Info } from "lucide-react";
import type { Project } from "@/api/types";

/** Explain why the project's branches get no pull requests, with a link to the settings. Renders nothing if they do. */
export function ForgeNote({
  project,
  className,
  linked = true,
  from,
}: {
  project: Project;
  className?: string;
  linked?: boolean;
  /** The page that the settings link back to. */
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
