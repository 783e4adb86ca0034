import type { TaskCard } from "@/api/types";
import { ReadOnlyNote } from "@/ui/form";
import { useMayChangeWork } from "./use-task-actions";

/** A note that says why most fields of the task cannot be changed; nothing if they can. */
export function OthersWorkNote({ task }: { task: TaskCard }) {
  const reason =
    "This task runs on behalf of another member, so you can change only its priority, what it needs and whether it starts automatically. " +
    "To change the rest, move it to the backlog without automatic start first.";
  return <ReadOnlyNote reason={useMayChangeWork(task) ? undefined : reason} />;
}
