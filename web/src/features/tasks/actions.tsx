import { useNavigate } from "@tanstack/react-router";
import { ArrowRight, Ban, Check, Ellipsis, Pencil, Play, RotateCw, Square, Trash2, Undo2 } from "lucide-react";
import { useState } from "react";
import type { Task } from "@/api/types";
import { FeedbackDialog } from "@/features/board/feedback";
import { WAYS } from "@/features/board/order";
import { canMerge } from "@/features/pulls/forge";
import { COLUMNS } from "@/lib/status";
import { Button, Hint, IconButton } from "@/ui/button";
import { Confirm } from "@/ui/dialog";
import { Menu, MenuItem, MenuLine, MenuTitle } from "@/ui/menu";
import { CancelTask } from "./cancel-task";
import { hasFailed, leading, running, toPick } from "./card-facts";
import { SandboxFate, UnsentComments, useCancelLabel } from "./consequences";
import { MergeButton } from "./merge-button";
import { EditTaskDialog } from "./new-task";
import { useRetryLabel, useTaskVerbs } from "./use-task";

const ICON = "size-3.5";
/** Failures that a retry cannot fix until the user takes the action offered next to them. */
const NEEDS_HELP = new Set(["over_budget", "no_model", "model_key_refused"]);

/** The actions for a task in its current state: the next step as a button, the rest in a menu. */
export function TaskActions({ task }: { task: Task }) {
  const [asking, ask] = useState<"feedback" | "edit" | "delete" | "done" | "cancel" | null>(null);
  const navigate = useNavigate();
  const { move, stop, retry, change, remove } = useTaskVerbs(task);
  const retryLabel = useRetryLabel(task);
  const busy = running(task);
  const over = task.status === "done" || task.status === "cancelled";
  const again = !busy && (hasFailed(task) || (over && task.attempts.length > 0));
  const stopping = task.attempts.some((one) => one.stopping);
  const help = NEEDS_HELP.has(leading(task)?.errorCode ?? "");
  const pull = task.status === "in_review" && toPick(task) <= 1 && canMerge(task.pullRequest) ? task.pullRequest : null;
  const sessionId = leading(task)?.sessionId;
  const cancel = useCancelLabel(sessionId);
  const close = () => ask(null);
  const go = (status: Task["status"]) => {
    if (task.status === "in_review" && status === "in_progress") ask("feedback");
    else if (task.status === "in_review" && status === "done") ask("done");
    else if (busy && status === "cancelled") ask("cancel");
    else move.mutate({ status });
  };
  return (
    <div className="flex shrink-0 items-center gap-1.5">
      {task.status === "backlog" && <StartButton task={task} />}
      {busy && (
        <Button size="sm" busy={stop.isPending || stopping} onClick={() => ask("cancel")}>
          <Ban className={ICON} aria-hidden /> {stopping ? "Stopping" : "Cancel task"}
        </Button>
      )}
      {again && task.status !== "done" && (
        <Button size="sm" look={help ? "plain" : "primary"} busy={retry.isPending} onClick={() => retry.mutate()}>
          <RotateCw className={ICON} aria-hidden /> {retryLabel}
        </Button>
      )}
      {task.status === "in_review" && !busy && (
        <>
          {toPick(task) > 1 ? (
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
            <Button size="sm" busy={move.isPending} onClick={() => ask("feedback")}>
              <Undo2 className={ICON} aria-hidden /> Request changes
            </Button>
          )}
          {pull ? (
            <MergeButton task={task} pull={pull} />
          ) : (
            <Button size="sm" busy={move.isPending} onClick={() => ask("done")}>
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
        <MenuItem onSelect={() => ask("edit")}>
          <Pencil className={ICON} aria-hidden /> Edit
        </MenuItem>
        {again && task.status === "done" && (
          <MenuItem onSelect={() => retry.mutate()}>
            <RotateCw className={ICON} aria-hidden /> {retryLabel}
          </MenuItem>
        )}
        {task.status === "backlog" && task.startWhenReady && (
          <MenuItem onSelect={() => change.mutate({ start: false })}>
            <Square className={ICON} aria-hidden /> Don't start automatically
          </MenuItem>
        )}
        <MenuLine />
        <MenuTitle>Move to</MenuTitle>
        {WAYS[task.status].map((column) => (
          <MenuItem key={column} onSelect={() => go(column)}>
            <ArrowRight className={ICON} aria-hidden /> {COLUMNS[column].text}
          </MenuItem>
        ))}
        <MenuLine />
        <MenuItem danger onSelect={() => ask("delete")}>
          <Trash2 className={ICON} aria-hidden /> Delete
        </MenuItem>
      </Menu>
      {asking === "feedback" && (
        <FeedbackDialog
          title={task.title}
          sessionId={sessionId}
          busy={move.isPending}
          onClose={close}
          onSend={(feedback, sent) =>
            move.mutate(
              { status: "in_progress", feedback },
              {
                onSuccess: () => {
                  sent();
                  close();
                },
              },
            )
          }
        />
      )}
      {asking === "edit" && <EditTaskDialog open task={task} onOpenChange={(open) => !open && close()} />}
      <CancelTask task={task} open={asking === "cancel"} onClose={close} onCancel={() => stop.mutateAsync()} />
      <Confirm
        open={asking === "done"}
        onOpenChange={(open) => !open && close()}
        title="Mark as done?"
        action="Mark as done"
        cancel={cancel}
        look="primary"
        onConfirm={() => move.mutateAsync({ status: "done" })}
      >
        <UnsentComments sessionId={sessionId} />
        {task.pullRequest && task.pullRequest.state === "open" ? "Its pull request stays open. " : ""}
        Its attempts are archived; branches and conversations are kept. <SandboxFate projectId={task.projectId} />
      </Confirm>
      <Confirm
        open={asking === "delete"}
        onOpenChange={(open) => !open && close()}
        title="Delete this task?"
        action="Delete"
        onConfirm={async () => {
          await remove.mutateAsync();
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
  const { move, change } = useTaskVerbs(task);
  if (task.blockedBy.length > 0) {
    return task.startWhenReady ? (
      <span className="text-xs text-soft">Starts automatically</span>
    ) : (
      <Hint
        text={`Blocked by ${task.blockedBy.length === 1 ? "another task" : `${task.blockedBy.length} other tasks`}.`}
      >
        <Button size={size} look="primary" busy={change.isPending} onClick={() => change.mutate({ start: true })}>
          <Play className={ICON} aria-hidden /> Start when unblocked
        </Button>
      </Hint>
    );
  }
  return (
    <Button size={size} look="primary" busy={move.isPending} onClick={() => move.mutate({ status: "in_progress" })}>
      <Play className={ICON} aria-hidden /> Start
    </Button>
  );
}
