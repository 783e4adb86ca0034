import { lazy, Suspense, useEffect } from "react";
import type { Move } from "@/api/queries/board";
import { useDeleteTask, useTask } from "@/api/queries/tasks";
import type { TaskCard } from "@/api/types";
import { CancelTask } from "@/features/tasks/cancel-task";
import { EditTaskDialog } from "@/features/tasks/new-task";
import { leadingAttempt } from "@/model/task-facts";
import { Confirm } from "@/ui/dialog";
import { showError } from "@/ui/toast";
import type { CardDialog } from "./actions";

const FeedbackDialog = lazy(() =>
  import("@/features/conversation/feedback-dialog").then((module) => ({ default: module.FeedbackDialog })),
);

/** The dialogs opened from cards. */
export function CardDialogs({
  dialog,
  onClose,
  onMove,
}: {
  dialog: CardDialog | null;
  onClose: () => void;
  onMove: (move: Move) => void;
}) {
  if (dialog?.kind === "feedback") {
    return (
      <Suspense>
        <FeedbackDialog
          title={dialog.move.task.title}
          sessionId={leadingAttempt(dialog.move.task)?.sessionId ?? undefined}
          onClose={onClose}
          onSend={(feedback, onSent) => {
            onClose();
            onMove({ ...dialog.move, feedback, onSent });
          }}
        />
      </Suspense>
    );
  }
  if (dialog?.kind === "edit") return <EditTask card={dialog.task} onClose={onClose} />;
  if (dialog?.kind === "delete") return <DeleteTask task={dialog.task} onClose={onClose} />;
  if (dialog?.kind === "cancel") return <CancelTask task={dialog.task} open onClose={onClose} onCancel={dialog.run} />;
  return null;
}

/** Load the full task before editing, because a card does not contain all fields. */
function EditTask({ card, onClose }: { card: TaskCard; onClose: () => void }) {
  const { data, error } = useTask(card.id);
  useEffect(() => {
    if (!error) return;
    showError(`Could not open “${card.title}”`)(error);
    onClose();
  }, [error, card.title, onClose]);
  return data ? <EditTaskDialog open task={data} onOpenChange={(open) => !open && onClose()} /> : null;
}

function DeleteTask({ task, onClose }: { task: TaskCard; onClose: () => void }) {
  const remove = useDeleteTask({ onError: showError(`Could not delete “${task.title}”`) });
  return (
    <Confirm
      open
      onOpenChange={(open) => !open && onClose()}
      title="Delete this task?"
      action="Delete"
      onConfirm={() => remove.mutateAsync(task.id)}
    >
      “{task.title}” is removed from the board, and its running attempts are stopped. Its sessions, branches and pull
      requests are kept.
    </Confirm>
  );
}
