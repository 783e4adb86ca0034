import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect } from "react";
import { without } from "@/api/board-data";
import { changeCards } from "@/api/cards";
import { api, got } from "@/api/client";
import { task as taskQuery } from "@/api/queries";
import type { TaskCard } from "@/api/types";
import { CancelTask } from "@/features/tasks/cancel-task";
import { leading } from "@/features/tasks/card-facts";
import { whenStopped } from "@/features/tasks/deleting";
import { EditTaskDialog } from "@/features/tasks/new-task";
import { Confirm } from "@/ui/dialog";
import { failed } from "@/ui/toast";
import type { Asking } from "./actions";
import { FeedbackDialog } from "./feedback";
import type { Move } from "./use-move";

/** The dialogs opened from cards. */
export function Asked({
  asking,
  onClose,
  onMove,
}: {
  asking: Asking | null;
  onClose: () => void;
  onMove: (move: Move) => void;
}) {
  if (asking?.kind === "feedback") {
    return (
      <FeedbackDialog
        title={asking.move.task.title}
        sessionId={leading(asking.move.task)?.sessionId}
        onClose={onClose}
        onSend={(feedback, sent) => {
          onClose();
          onMove({ ...asking.move, feedback, sent });
        }}
      />
    );
  }
  if (asking?.kind === "edit") return <EditTask card={asking.task} onClose={onClose} />;
  if (asking?.kind === "delete") return <DeleteTask task={asking.task} onClose={onClose} />;
  if (asking?.kind === "cancel") return <CancelTask task={asking.task} open onClose={onClose} onCancel={asking.run} />;
  return null;
}

/** Load the full task before editing, because a card does not contain all fields. */
function EditTask({ card, onClose }: { card: TaskCard; onClose: () => void }) {
  const { data, error } = useQuery(taskQuery(card.id));
  useEffect(() => {
    if (!error) return;
    failed(`Could not open “${card.title}”`)(error);
    onClose();
  }, [error, card.title, onClose]);
  return data ? <EditTaskDialog open task={data} onOpenChange={(open) => !open && onClose()} /> : null;
}

function DeleteTask({ task, onClose }: { task: TaskCard; onClose: () => void }) {
  const client = useQueryClient();
  const remove = useMutation({
    ...whenStopped,
    mutationFn: () => got(api.DELETE("/api/v1/tasks/{task_id}", { params: { path: { task_id: task.id } } })),
    onSuccess: () => changeCards(client, without(task.id)),
    onError: failed(`Could not delete “${task.title}”`),
  });
  return (
    <Confirm
      open
      onOpenChange={(open) => !open && onClose()}
      title="Delete this task?"
      action="Delete"
      onConfirm={() => remove.mutateAsync()}
    >
      “{task.title}” is removed from the board, and its running attempts are stopped. Its sessions, branches and pull
      requests are kept.
    </Confirm>
  );
}
