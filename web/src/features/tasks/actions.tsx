import { useNavigate } from "@tanstack/react-router";
import { ArrowRight, Ban, Check, Ellipsis, Pencil, Play, RotateCw, Square, Trash2, Undo2 } from "lucide-react";
import { useState } from "react";
import { TARGET_COLUMNS } from "@/api/card-order";
import type { Task } from "@/api/types";
import { FeedbackDialog } from "@/features/conversation/feedback-dialog";
import { SandboxNote, UnsentComments, useCancelLabel } from "@/features/pulls/consequences";
import { canMerge } from "@/model/forge";
import { COLUMNS } from "@/model/status-labels";
import { countReadyAttempts, hasFailed, isRunning, leadingAttempt } from "@/model/task-facts";
import { Button, Hint, IconButton } from "@/ui/button";
import { Confirm } from "@/ui/dialog";
import { Menu, MenuItem, MenuLine, MenuTitle } from "@/ui/menu";
import { CancelTask } from "./cancel-task";
import { MergeButton } from "./merge-button";
import { EditTaskDialog } from "./new-task";
import { useRetryLabel, useTaskActions } from "./use-task-actions";

const ICON = "size-3.5";
/** Failures that a retry cannot fix until the user takes the action offered next to them. */
const NEEDS_HELP = new Set(["over_budget", "no_model", "model_key_refused"]);

/** The actions for a task in its current state: the next step as a button, the rest in a menu. */
export function TaskActions({ task }: { task: Task }) {
  const [dialog, setDialog] = useState<"feedback" | "edit" | "delete" | "done" | "cancel" | null>(null);
  const navigate = useNavigate();
  const { move, stop, retry, update, remove } = useTaskActions();
  const retryLabel = useRetryLabel(task);
  const busy = isRunning(task);
  const finished = task.status === "done" || task.status === "cancelled";
  const canRetry = !busy && (hasFailed(task) || (finished && task.attempts.length > 0));
  const stopping = task.attempts.some((attempt) => attempt.stopping);
  const needsHelp = NEEDS_HELP.has(leadingAttempt(task)?.errorCode ?? "");
  const pull =
    task.status === "in_review" && countReadyAttempts(task) <= 1 && canMerge(task.pullRequest)
      ? task.pullRequest
      : null;
  const sessionId = leadingAttempt(task)?.sessionId ?? undefined;
  const cancel = useCancelLabel(sessionId);
  const close = () => setDialog(null);
  const moveTo = (status: Task["status"]) => {
    if (task.status === "in_review" && status === "in_progress") setDialog("feedback");
    else if (task.status === "in_review" && status === "done") setDialog("done");
    else if (busy && status === "cancelled") setDialog("cancel");
    else move.mutate({ id: task.id, status });
  };
  return (
    <div className="flex shrink-0 items-center gap-1.5">
      {task.status === "backlog" && <StartButton task={task} />}
      {busy && (
        <Button size="sm" busy={stop.isPending || stopping} onClick={() => setDialog("cancel")}>
          <Ban className={ICON} aria-hidden /> {stopping ? "Stopping" : "Cancel task"}
        </Button>
      )}
      {canRetry && task.status !== "done" && (
        <Button
          size="sm"
          look={needsHelp ? "plain" : "primary"}
          busy={retry.isPending}
          onClick={() => retry.mutate({ id: task.id })}
        >
          <RotateCw className={ICON} aria-hidden /> {retryLabel}
        </Button>
      )}
      {task.status === "in_review" && !busy && (
        <>
          {countReadyAttempts(task) > 1 ? (
            <Button
              size="sm"
              look="primary"
              onClick={() =>
                navigate({ to: "/tasks/$taskId", params: { taskId: task.id }, search: { tab: "attempts" } })
              }
            >
              <Check className={ICON} aria-hidden /> Pick an attempt
            </Button>
          ) : (
            <Button size="sm" busy={move.isPending} onClick={() => setDialog("feedback")}>
              <Undo2 className={ICON} aria-hidden /> <span className="max-sm:sr-only">Request changes</span>
            </Button>
          )}
          {pull ? (
            <MergeButton task={task} pull={pull} />
          ) : (
            <Button size="sm" busy={move.isPending} onClick={() => setDialog("done")}>
              <Check className={ICON} aria-hidden /> Mark as done
            </Button>
          )}
        </>
      )}
      <Menu
        trigger={
          <IconButton label="More actions" size="sm">
            <Ellipsis className="size-4" aria-hidden />
          </IconButton>
        }
      >
        <MenuItem onSelect={() => setDialog("edit")}>
          <Pencil className={ICON} aria-hidden /> Edit
        </MenuItem>
        {canRetry && task.status === "done" && (
          <MenuItem onSelect={() => retry.mutate({ id: task.id })}>
            <RotateCw className={ICON} aria-hidden /> {retryLabel}
          </MenuItem>
        )}
        {task.status === "backlog" && task.startWhenReady && (
          <MenuItem onSelect={() => update.mutate({ id: task.id, start: false })}>
            <Square className={ICON} aria-hidden /> Don't start automatically
          </MenuItem>
        )}
        <MenuLine />
        <MenuTitle>Move to</MenuTitle>
        {TARGET_COLUMNS[task.status].map((column) => (
          <MenuItem key={column} onSelect={() => moveTo(column)}>
            <ArrowRight className={ICON} aria-hidden /> {COLUMNS[column].text}
          </MenuItem>
        ))}
        <MenuLine />
        <MenuItem danger onSelect={() => setDialog("delete")}>
          <Trash2 className={ICON} aria-hidden /> Delete
        </MenuItem>
      </Menu>
      {dialog === "feedback" && (
        <FeedbackDialog
          title={task.title}
          sessionId={sessionId}
          busy={move.isPending}
          onClose={close}
          onSend={(feedback, onSent) =>
            move.mutate(
              { id: task.id, status: "in_progress", feedback },
              {
                onSuccess: () => {
                  onSent();
                  close();
                },
              },
            )
          }
        />
      )}
      {dialog === "edit" && <EditTaskDialog open task={task} onOpenChange={(open) => !open && close()} />}
      <CancelTask task={task} open={dialog === "cancel"} onClose={close} onCancel={() => stop.mutateAsync(task.id)} />
      <Confirm
        open={dialog === "done"}
        onOpenChange={(open) => !open && close()}
        title="Mark as done?"
        action="Mark as done"
        cancel={cancel}
        look="primary"
        onConfirm={() => move.mutateAsync({ id: task.id, status: "done" })}
      >
        <UnsentComments sessionId={sessionId} />
        {task.pullRequest && task.pullRequest.state === "open" ? "Its pull request stays open. " : ""}
        Its attempts are archived; branches and conversations are kept. <SandboxNote projectId={task.projectId} />
      </Confirm>
      <Confirm
        open={dialog === "delete"}
        onOpenChange={(open) => !open && close()}
        title="Delete this task?"
        action="Delete"
        onConfirm={async () => {
          await remove.mutateAsync(task.id);
          void navigate({ to: "/board" });
        }}
      >
        “{task.title}” is removed from the board, and its running attempts are stopped. Its sessions, branches and pull
        requests are kept.
      </Confirm>
    </div>
  );
}

/** The start button. Also used on the page of a task that has not started. */
export function StartButton({ task, size = "sm" }: { task: Task; size?: "sm" | "md" }) {
  const { move, update } = useTaskActions();
  if (task.blockedBy.length > 0) {
    return task.startWhenReady ? (
      <span className="text-xs text-soft">Starts automatically</span>
    ) : (
      <Hint
        text={`Blocked by ${task.blockedBy.length === 1 ? "another task" : `${task.blockedBy.length} other tasks`}.`}
      >
        <Button
          size={size}
          look="primary"
          busy={update.isPending}
          onClick={() => update.mutate({ id: task.id, start: true })}
        >
          <Play className={ICON} aria-hidden /> Start when unblocked
        </Button>
      </Hint>
    );
  }
  return (
    <Button
      size={size}
      look="primary"
      busy={move.isPending}
      onClick={() => move.mutate({ id: task.id, status: "in_progress" })}
    >
      <Play className={ICON} aria-hidden /> Start
    </Button>
  );
}
