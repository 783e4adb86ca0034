import { Link } from "@tanstack/react-router";
import { CircleAlert, Play, Trash2 } from "lucide-react";
import { useCurrentUser } from "@/api/queries/account";
import { useDeleteSchedule, useEnableSchedule, useRunSchedule } from "@/api/queries/schedules";
import type { Project, Schedule } from "@/api/types";
import { Button, IconButton } from "@/ui/button";
import { Confirm } from "@/ui/dialog";
import { Switch } from "@/ui/field";
import { Ago } from "@/ui/time";
import { showError, toast } from "@/ui/toast";
import { describeCron } from "./cron";
import { ScheduledTime } from "./scheduled-time";

const NOT_CREATOR = "Only its creator can edit or enable this schedule, because its tasks run on their behalf.";

export function ScheduleRow({
  schedule,
  project,
  onEdit,
}: {
  schedule: Schedule;
  project: Project | undefined;
  onEdit: () => void;
}) {
  const user = useCurrentUser();
  const isCreator = user?.id === schedule.ownerId;
  const mayDisable = isCreator || user?.role === "admin" || user?.id === project?.ownerId;
  const enable = useEnableSchedule({ onError: showError("Could not change the schedule") });
  const run = useRunSchedule({
    onSuccess: (task) => toast.success(`Created the task “${task.title}”`),
    onError: showError("Could not create the task"),
  });
  const remove = useDeleteSchedule({ onError: showError("Could not delete the schedule") });
  const enabled = enable.isPending ? enable.variables.enabled : schedule.enabled;
  return (
    <li className="flex flex-wrap items-center gap-x-4 gap-y-2 px-4 py-3">
      <div className="min-w-0 flex-1 basis-64">
        <p className="text-[13px] font-medium">
          {schedule.name} <span className="font-normal text-soft">in {project?.name ?? schedule.projectId}</span>
        </p>
        <p className="truncate text-[13px] text-soft" title={schedule.task.title}>
          {schedule.task.title}
        </p>
        <p className="text-xs text-soft">
          {describeCron(schedule.cron) ?? <code className="font-mono">{schedule.cron}</code>}{" "}
          <span className="text-faint">({schedule.timezone})</span>
        </p>
        {schedule.lastError && (
          <p className="mt-1 flex items-start gap-1.5 text-xs break-words text-bad">
            <CircleAlert className="mt-px size-3.5 shrink-0" aria-hidden /> The last run created no task:{" "}
            {schedule.lastError}
          </p>
        )}
      </div>
      <dl className="grid grid-cols-[auto_1fr] gap-x-2 text-xs text-soft tabular-nums">
        <dt>Next</dt>
        <dd>{schedule.nextAt ? <ScheduledTime at={schedule.nextAt} zone={schedule.timezone} /> : "disabled"}</dd>
        <dt>Last</dt>
        <dd>
          {schedule.lastAt ? <Ago at={schedule.lastAt} /> : "never"}
          {schedule.lastTaskId && (
            <>
              {" · "}
              <Link
                to="/tasks/$taskId"
                params={{ taskId: schedule.lastTaskId }}
                className="text-accent underline underline-offset-2"
              >
                Open task
              </Link>
            </>
          )}
        </dd>
      </dl>
      <div className="flex items-center gap-1.5">
        <Switch
          checked={enabled}
          onChange={(next) => enable.mutate({ id: schedule.id, enabled: next })}
          disabled={!(isCreator || (mayDisable && enabled)) || enable.isPending}
          label={<span className="sr-only">{schedule.name} enabled</span>}
        />
        <IconButton
          label={`Run ${schedule.name} now`}
          size="sm"
          busy={run.isPending}
          onClick={() => run.mutate(schedule.id)}
        >
          {!run.isPending && <Play className="size-3.5" aria-hidden />}
        </IconButton>
        <Button
          size="sm"
          disabled={!isCreator}
          title={isCreator ? undefined : NOT_CREATOR}
          onClick={onEdit}
          aria-label={`Edit ${schedule.name}`}
        >
          Edit
        </Button>
        <Confirm
          trigger={
            <IconButton label={`Delete ${schedule.name}`} size="sm" disabled={!mayDisable}>
              <Trash2 className="size-3.5" aria-hidden />
            </IconButton>
          }
          title={`Delete ${schedule.name}?`}
          action="Delete"
          onConfirm={() => remove.mutateAsync(schedule.id)}
        >
          Tasks that it has created are kept.
        </Confirm>
      </div>
    </li>
  );
}
