/** Suggest a project name from its repository's URL: the last part of the path. */
export function suggestName(repository: string): string {
  const path = repository
    .trim()
    .replace(/[?#].*$/, "")
    .replace(/\/+$/, "")
    .replace(/\.git$/, "");
  return path.split(/[/:]/).pop() ?? "";
}
