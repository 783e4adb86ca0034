import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { CircleAlert, Play, Trash2 } from "lucide-react";
import { api, got } from "@/api/client";
import { me } from "@/api/queries";
import type { Project } from "@/api/types";
import { Button, IconButton } from "@/ui/button";
import { Confirm } from "@/ui/dialog";
import { Switch } from "@/ui/field";
import { Ago } from "@/ui/time";
import { failed, toast } from "@/ui/toast";
import { inWords } from "./cron";
import type { Schedule } from "./page";

export function ScheduleRow({
  schedule,
  project,
  onEdit,
}: {
  schedule: Schedule;
  project: Project | undefined;
  onEdit: () => void;
}) {
  const client = useQueryClient();
  const caller = useQuery(me).data?.user;
  const may = caller?.role === "admin" || caller?.id === schedule.ownerId || caller?.id === project?.ownerId;
  const at = { params: { path: { schedule_id: schedule.id } } };
  const changed = () => client.invalidateQueries({ queryKey: ["schedules"] });
  const enable = useMutation({
    mutationFn: (enabled: boolean) => got(api.PATCH("/api/v1/schedules/{schedule_id}", { ...at, body: { enabled } })),
    onSettled: changed,
    onError: failed("Could not change the schedule"),
  });
  const run = useMutation({
    mutationFn: () => got(api.POST("/api/v1/schedules/{schedule_id}/run", at)),
    onSuccess: (task) => {
      for (const noun of ["tasks", "board", "counts"]) void client.invalidateQueries({ queryKey: [noun] });
      void changed();
      toast.success(`Created the task “${task.title}”`);
    },
    onError: failed("Could not create the task"),
  });
  const remove = useMutation({
    mutationFn: () => got(api.DELETE("/api/v1/schedules/{schedule_id}", at)),
    onSuccess: changed,
    onError: failed("Could not delete the schedule"),
  });
  const on = enable.isPending ? enable.variables : schedule.enabled;
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
          {inWords(schedule.cron) ?? <code className="font-mono">{schedule.cron}</code>}{" "}
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
        <dd>{schedule.nextAt ? <When at={schedule.nextAt} zone={schedule.timezone} /> : "disabled"}</dd>
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
          checked={on}
          onChange={(next) => enable.mutate(next)}
          disabled={!may || enable.isPending}
          label={<span className="sr-only">{schedule.name} enabled</span>}
        />
        <IconButton label={`Run ${schedule.name} now`} size="sm" busy={run.isPending} onClick={() => run.mutate()}>
          {!run.isPending && <Play className="size-3.5" aria-hidden />}
        </IconButton>
        <Button size="sm" disabled={!may} onClick={onEdit} aria-label={`Edit ${schedule.name}`}>
          Edit
        </Button>
        <Confirm
          trigger={
            <IconButton label={`Delete ${schedule.name}`} size="sm" disabled={!may}>
              <Trash2 className="size-3.5" aria-hidden />
            </IconButton>
          }
          title={`Delete ${schedule.name}?`}
          action="Delete"
          onConfirm={() => remove.mutateAsync()}
        >
          Tasks that it has created are kept.
        </Confirm>
      </div>
    </li>
  );
}

/** A time in the schedule's own time zone. */
export function When({ at, zone }: { at: string; zone: string }) {
  const date = new Date(at);
  return (
    <time dateTime={at} title={`${date.toLocaleString()} local time`}>
      {date.toLocaleString(undefined, {
        timeZone: zone,
        weekday: "short",
        day: "numeric",
        month: "short",
        hour: "2-digit",
        minute: "2-digit",
      })}
    </time>
  );
}
