import { useNavigate } from "@tanstack/react-router";
import { ArrowRight, Ban, Clock, Ellipsis, ExternalLink, Pencil, Play, RotateCw, Square, Trash2 } from "lucide-react";
import { useRef } from "react";
import { TARGET_COLUMNS } from "@/api/card-order";
import type { TaskCard } from "@/api/types";
import { useRetryLabel } from "@/features/tasks/use-task-actions";
import { COLUMNS } from "@/model/status-labels";
import { hasFailed, isRunning } from "@/model/task-facts";
import { Menu, MenuItem, MenuLine, MenuTitle } from "@/ui/menu";
import { useActions } from "./actions";

const ICON = "size-3.5 text-faint";

/** The menu button of a card. All cards share one menu, because hundreds of menus would slow down scrolling. */
export function CardMenuButton({ task, tabStop }: { task: TaskCard; tabStop: boolean }) {
  const { openMenu } = useActions();
  return (
    <button
      type="button"
      tabIndex={tabStop ? 0 : -1}
      aria-haspopup="menu"
      aria-label={`Actions for ${task.title}`}
      onClick={(event) => openMenu(task, event.currentTarget)}
      className="grid size-6 shrink-0 place-items-center rounded text-faint hover:bg-hover hover:text-text"
    >
      <Ellipsis className="size-4" aria-hidden />
    </button>
  );
}

export interface OpenMenu {
  task: TaskCard;
  button: HTMLElement;
}

/** All actions of a card, as an alternative to dragging. Always mounted, so that it can detect being opened by a key. */
export function CardMenu({ shown, onClose }: { shown: OpenMenu | null; onClose: () => void }) {
  const last = useRef(shown);
  last.current = shown ?? last.current;
  const box = last.current?.button.getBoundingClientRect();
  return (
    <Menu
      open={shown !== null}
      onOpenChange={(open) => !open && onClose()}
      onCloseAutoFocus={(event) => {
        event.preventDefault();
        const button = last.current?.button;
        if (document.activeElement === document.body && button?.isConnected) button.focus();
      }}
      trigger={
        <button
          type="button"
          aria-hidden
          tabIndex={-1}
          className="pointer-events-none fixed opacity-0"
          style={box && { left: box.left, top: box.top, width: box.width, height: box.height }}
        />
      }
    >
      {shown && <Items task={shown.task} />}
    </Menu>
  );
}

function Items({ task }: { task: TaskCard }) {
  const actions = useActions();
  const navigate = useNavigate();
  const retryLabel = useRetryLabel(task);
  const busy = isRunning(task);
  const backlog = task.status === "backlog";
  const canRetry =
    !busy && (hasFailed(task) || task.status === "done" || (task.status === "cancelled" && task.attempts.length > 0));
  return (
    <>
      <MenuItem onSelect={() => navigate({ to: "/tasks/$taskId", params: { taskId: task.id } })}>
        <ExternalLink className={ICON} aria-hidden /> Open
      </MenuItem>
      {backlog && !task.blockedBy.length && (
        <MenuItem onSelect={() => actions.move(task, "in_progress", null)}>
          <Play className={ICON} aria-hidden /> Start
        </MenuItem>
      )}
      {backlog && task.blockedBy.length > 0 && !task.startWhenReady && (
        <MenuItem onSelect={() => actions.startWhenReady(task, true)}>
          <Clock className={ICON} aria-hidden /> Start when unblocked
        </MenuItem>
      )}
      {backlog && task.startWhenReady && (
        <MenuItem onSelect={() => actions.startWhenReady(task, false)}>
          <Square className={ICON} aria-hidden /> Don't start automatically
        </MenuItem>
      )}
      {busy && (
        <MenuItem onSelect={() => actions.cancel(task)}>
          <Ban className={ICON} aria-hidden /> Cancel task
        </MenuItem>
      )}
      {canRetry && (
        <MenuItem onSelect={() => actions.retry(task)}>
          <RotateCw className={ICON} aria-hidden /> {retryLabel}
        </MenuItem>
      )}
      <MenuItem onSelect={() => actions.edit(task)}>
        <Pencil className={ICON} aria-hidden /> Edit
      </MenuItem>
      <MenuLine />
      <MenuTitle>Move to</MenuTitle>
      {TARGET_COLUMNS[task.status].map((column) => (
        <MenuItem key={column} onSelect={() => actions.move(task, column, null, true)}>
          <ArrowRight className={ICON} aria-hidden /> {COLUMNS[column].text}
        </MenuItem>
      ))}
      <MenuLine />
      <MenuItem danger onSelect={() => actions.remove(task)}>
        <Trash2 className="size-3.5" aria-hidden /> Delete
      </MenuItem>
    </>
  );
}
