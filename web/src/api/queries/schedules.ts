/** Schedules, which create tasks repeatedly. */
import { useQuery } from "@tanstack/react-query";
import { api, readAllPages, type Schemas, unwrap } from "../client";
import { keys } from "../keys";
import { defineMutation } from "../mutation";
import { invalidate } from "../refresh";

const pathOf = (id: string) => ({ params: { path: { schedule_id: id } } });

/** The schedules of a project, or of all projects. */
export const useSchedules = (projectId: string | undefined) =>
  useQuery({
    queryKey: keys.schedules(projectId),
    queryFn: () =>
      readAllPages((cursor) =>
        unwrap(api.GET("/api/v1/schedules", { params: { query: { projectId, cursor, limit: 200 } } })),
      ),
  });

type ScheduleDraft = Omit<Schemas["NewSchedule"], "enabled"> & {
  /** Undefined for a new schedule. */
  id: string | undefined;
};

/** Create a schedule, or change one. A schedule stays in its project. */
export const useSaveSchedule = defineMutation({
  request: ({ id, projectId, ...body }: ScheduleDraft) =>
    id === undefined
      ? unwrap(api.POST("/api/v1/schedules", { body: { ...body, projectId, enabled: true } }))
      : unwrap(api.PATCH("/api/v1/schedules/{schedule_id}", { ...pathOf(id), body })),
  onSuccess: (client) => void client.invalidateQueries({ queryKey: keys.allSchedules() }),
});

export const useEnableSchedule = defineMutation({
  request: ({ id, enabled }: { id: string; enabled: boolean }) =>
    unwrap(api.PATCH("/api/v1/schedules/{schedule_id}", { ...pathOf(id), body: { enabled } })),
  onSettled: (client) => client.invalidateQueries({ queryKey: keys.allSchedules() }),
});

/** Create the schedule's task now. */
export const useRunSchedule = defineMutation({
  request: (id: string) => unwrap(api.POST("/api/v1/schedules/{schedule_id}/run", pathOf(id))),
  onSuccess: (client) =>
    void invalidate(client, keys.allTasks(), keys.boards(), keys.taskCounts(), keys.allSchedules()),
});

export const useDeleteSchedule = defineMutation({
  request: (id: string) => unwrap(api.DELETE("/api/v1/schedules/{schedule_id}", pathOf(id))),
  onSuccess: (client) => client.invalidateQueries({ queryKey: keys.allSchedules() }),
});
