import { useMutation, useQueryClient } from "@tanstack/react-query";
import { api, got } from "@/api/client";
import type { Task } from "@/api/types";
import { whenStopped } from "@/features/tasks/deleting";
import { EditTaskDialog } from "@/features/tasks/new-task";
import { Confirm } from "@/ui/dialog";
import { failed } from "@/ui/toast";
import type { Asking } from "./actions";
import { FeedbackDialog } from "./feedback";
import type { Move } from "./use-move";

/** The dialogs that cards open. */
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
        onClose={onClose}
        onSend={(feedback) => {
          onClose();
          onMove({ ...asking.move, feedback });
        }}
      />
    );
  }
  if (asking?.kind === "edit")
    return <EditTaskDialog open task={asking.task} onOpenChange={(open) => !open && onClose()} />;
  if (asking?.kind === "delete") return <DeleteTask task={asking.task} onClose={onClose} />;
  return null;
}

function DeleteTask({ task, onClose }: { task: Task; onClose: () => void }) {
  const client = useQueryClient();
  const remove = useMutation({
    ...whenStopped,
    mutationFn: () => got(api.DELETE("/api/v1/tasks/{task_id}", { params: { path: { task_id: task.id } } })),
    onSuccess: () =>
      client.setQueriesData<Task[]>({ queryKey: ["tasks"] }, (known) => known?.filter((one) => one.id !== task.id)),
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
      “{task.title}” goes from the board, and what works on it is stopped. Its sessions, branches and pull requests
      stay.
    </Confirm>
  );
}
