import { getRouteApi, useNavigate } from "@tanstack/react-router";
import { CalendarClock, Plus } from "lucide-react";
import { useState } from "react";
import { useProjects } from "@/api/queries/projects";
import { useSchedules } from "@/api/queries/schedules";
import type { Schedule } from "@/api/types";
import { Button } from "@/ui/button";
import { Dialog } from "@/ui/dialog";
import { Select } from "@/ui/field";
import { Page } from "@/ui/page";
import { Empty, Loaded } from "@/ui/states";
import { ScheduleForm } from "./form";
import { ScheduleRow } from "./row";

const route = getRouteApi("/inside/schedules");

export function SchedulesPage() {
  const { project } = route.useSearch();
  const navigate = useNavigate();
  const projects = useProjects();
  const schedules = useSchedules(project);
  const [editing, setEditing] = useState<Schedule | "new" | null>(null);
  const add = (
    <Button look="primary" disabled={!projects.data?.length} onClick={() => setEditing("new")}>
      <Plus className="size-4" aria-hidden /> New schedule
    </Button>
  );
  return (
    <Page
      title="Schedules"
      actions={
        <>
          <Select
            label="Project"
            className="!w-44"
            value={project ?? "all"}
            onChange={(id) => navigate({ to: "/schedules", search: id === "all" ? {} : { project: id } })}
            choices={[
              { value: "all", label: "All projects" },
              ...(projects.data ?? []).map((item) => ({ value: item.id, label: item.name })),
            ]}
          />
          {Boolean(schedules.data?.length) && add}
        </>
      }
    >
      <Loaded query={schedules}>
        {(found) =>
          found.length ? (
            <ul className="divide-y rounded-lg border bg-surface">
              {found.map((schedule) => (
                <ScheduleRow
                  key={schedule.id}
                  schedule={schedule}
                  project={projects.data?.find((other) => other.id === schedule.projectId)}
                  onEdit={() => setEditing(schedule)}
                />
              ))}
            </ul>
          ) : (
            <Empty title="No schedules" icon={<CalendarClock className="size-6" aria-hidden />} action={add}>
              A schedule creates a task repeatedly, such as dependency updates every night or a report every Monday.
            </Empty>
          )
        }
      </Loaded>
      <Dialog
        wide
        open={editing !== null}
        onOpenChange={(open) => !open && setEditing(null)}
        title={editing && editing !== "new" ? editing.name : "New schedule"}
        description="When to create a task, and which task."
      >
        {editing && (
          <ScheduleForm
            schedule={editing === "new" ? undefined : editing}
            projectId={project}
            projects={projects.data ?? []}
            onDone={() => setEditing(null)}
          />
        )}
      </Dialog>
    </Page>
  );
}
