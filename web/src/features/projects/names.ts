/** What a project could be called, by its repository's address: its last word. */
export function nameOf(repository: string): string {
  const path = repository
    .trim()
    .replace(/[?#].*$/, "")
    .replace(/\/+$/, "")
    .replace(/\.git$/, "");
  return path.split(/[/:]/).pop() ?? "";
}
