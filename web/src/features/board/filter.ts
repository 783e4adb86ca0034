/** Which cards are shown. Everything in the address must hold. */
import type { Project, Task } from "@/api/types";
import { agentOf, hasFailed, needsPerson, running } from "@/features/tasks/card-facts";
import type { BoardSearch } from "@/routes";

export interface Known {
  projects: ReadonlyMap<string, Project>;
  /** Sessions in which something waits for a person. */
  asked: ReadonlySet<string>;
}

export const isFiltered = (search: BoardSearch): boolean => Boolean(search.q || search.agent || search.show);

export function matches(task: Task, search: BoardSearch, known: Known): boolean {
  if (search.project && task.projectId !== search.project) return false;
  if (search.agent && !worksWith(task, search.agent, known.projects.get(task.projectId))) return false;
  if (search.show === "needs-you" && !needsPerson(task, known.asked)) return false;
  if (search.show === "running" && !running(task)) return false;
  if (search.show === "failed" && !hasFailed(task)) return false;
  return !search.q || hasWords(task, search.q);
}

function worksWith(task: Task, agent: string, project: Project | undefined): boolean {
  return (
    agentOf(task, project) === agent ||
    task.attempts.some((one) => one.agent === agent) ||
    task.wanted.some((one) => one.agent === agent)
  );
}

/** Every word, in any order, somewhere in what people call the card. */
function hasWords(task: Task, q: string): boolean {
  const pull = task.pullRequest;
  const text = [task.title, task.description, task.id, pull?.headBranch, pull?.number ? `#${pull.number}` : ""]
    .join("\n")
    .toLowerCase();
  return q
    .toLowerCase()
    .split(/\s+/)
    .every((word) => text.includes(word));
}
