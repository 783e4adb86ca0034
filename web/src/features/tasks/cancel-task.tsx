import { useQuery } from "@tanstack/react-query";
import { projects } from "@/api/queries";
import type { TaskCard } from "@/api/types";
import { Confirm } from "@/ui/dialog";

/** Asks before the work on a task is ended, and says what stays of it. */
export function CancelTask({
  task,
  open,
  onClose,
  onCancel,
}: {
  task: TaskCard;
  open: boolean;
  onClose: () => void;
  onCancel: () => Promise<unknown> | unknown;
}) {
  const project = useQuery(projects).data?.find((one) => one.id === task.projectId);
  const paused = project?.settings.tasks?.finished === "pause";
  return (
    <Confirm
      open={open}
      onOpenChange={(shown) => !shown && onClose()}
      title="Cancel this task?"
      action="Cancel task"
      cancel="Keep it running"
      onConfirm={onCancel}
    >
      The agent is stopped, and the card moves to Cancelled. The conversation, the branch and the files of the checkout
      are kept: Retry continues from them.{" "}
      {paused
        ? "Its sandbox is paused."
        : "Its sandbox is deleted: what else is in it is lost, such as running programs and files that git ignores."}
    </Confirm>
  );
}
