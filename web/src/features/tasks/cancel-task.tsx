import type { TaskCard } from "@/api/types";
import { SandboxNote } from "@/features/pulls/consequences";
import { Confirm } from "@/ui/dialog";

/** Confirm that a task is cancelled, and say what is kept. */
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
      are kept: Retry continues from them. <SandboxNote projectId={task.projectId} />
    </Confirm>
  );
}
