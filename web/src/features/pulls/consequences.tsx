/** Warnings in the dialogs that end a task: what happens to work outside its branch. */
import { useProjects } from "@/api/queries/projects";
import { useComments } from "@/features/conversation/comments";
import { pluralize } from "@/lib/format";

/** What happens to the sandbox, according to the project's settings. */
export function SandboxNote({ projectId }: { projectId: string }) {
  const project = useProjects().data?.find((candidate) => candidate.id === projectId);
  return project?.settings.tasks?.finished === "pause"
    ? "Its sandbox is paused."
    : "Its sandbox is deleted, including running programs and files ignored by Git.";
}

/** What a merge does to the task. */
export function TaskDoneNote({ projectId }: { projectId: string }) {
  return (
    <>
      {" "}
      The task is then marked as done. <SandboxNote projectId={projectId} />
    </>
  );
}

/** Warn about unsent comments on the changes; renders nothing if there are none. */
export function UnsentComments({ sessionId }: { sessionId: string | undefined }) {
  const count = useComments(sessionId ?? "").comments.length;
  if (!count) return null;
  return (
    <p className="mb-2 rounded-md bg-warn-soft px-2.5 py-1.5 text-text">
      {pluralize(count, "comment")} on the changes {count === 1 ? "is" : "are"} not sent yet. Go back to send{" "}
      {count === 1 ? "it" : "them"} to the agent first.
    </p>
  );
}

/** Return the label of the button that closes such a dialog without acting. */
export function useCancelLabel(sessionId: string | undefined): string {
  return useComments(sessionId ?? "").comments.length ? "Go back" : "Cancel";
}
