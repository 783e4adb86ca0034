/** What the end of a task means for what is not in its branch: said in the dialogs that end it. */
import { useQuery } from "@tanstack/react-query";
import { projects } from "@/api/queries";
import { useComments } from "@/features/changes/comments";
import { plural } from "@/lib/format";

/** What becomes of the sandbox, by the project's settings. */
export function SandboxFate({ projectId }: { projectId: string }) {
  const project = useQuery(projects).data?.find((one) => one.id === projectId);
  return project?.settings.tasks?.finished === "pause"
    ? "Its sandbox is paused."
    : "Its sandbox is deleted, with the programs that run in it and the files that git ignores.";
}

/** What a merge means for the task. */
export function TaskDone({ projectId }: { projectId: string }) {
  return (
    <>
      {" "}
      The task is then done. <SandboxFate projectId={projectId} />
    </>
  );
}

/** That comments on the changes would stay unread; nothing where all were sent. */
export function UnsentComments({ sessionId }: { sessionId: string | undefined }) {
  const count = useComments(sessionId ?? "").comments.length;
  if (!count) return null;
  return (
    <p className="mb-2 rounded-md bg-warn-soft px-2.5 py-1.5 text-text">
      {plural(count, "comment")} on the changes {count === 1 ? "is" : "are"} not sent. Go back to send{" "}
      {count === 1 ? "it" : "them"} to the agent first.
    </p>
  );
}

/** What the button is called that leaves such a dialog. */
export function useCancelLabel(sessionId: string | undefined): string {
  return useComments(sessionId ?? "").comments.length ? "Go back" : "Cancel";
}
