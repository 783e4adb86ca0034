import type { Project } from "@/api/types";

/** Suggest a project name from its repository's URL: the last part of the path. */
export function suggestName(repository: string): string {
  const path = repository
    .trim()
    .replace(/[?#].*$/, "")
    .replace(/\/+$/, "")
    .replace(/\.git$/, "");
  return path.split(/[/:]/).pop() ?? "";
}

/** Return the active project that has this repository already. The end of the URL, `.git` or a slash, makes no difference. */
export function findByRepository(projects: readonly Project[] | undefined, repository: string): Project | undefined {
  const wanted = normalize(repository);
  if (!wanted) return undefined;
  return projects?.find((project) => !project.archivedAt && normalize(project.repository ?? "") === wanted);
}

const normalize = (repository: string) =>
  repository
    .trim()
    .replace(/\/+$/, "")
    .replace(/\.git$/, "");
