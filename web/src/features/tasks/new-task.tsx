import { lazy, Suspense, useRef } from "react";
import type { Session, Task } from "@/api/types";

const TaskDialog = lazy(() => import("./task-dialog").then((module) => ({ default: module.TaskDialog })));

interface Shown {
  open: boolean;
  onOpenChange: (open: boolean) => void;
}

/** The dialog for a new task, which may start from a session. A closed dialog keeps its draft until the task is created. */
export function NewTaskDialog({
  open,
  onOpenChange,
  projectId,
  source,
}: Shown & { projectId?: string | undefined; source?: Session | undefined }) {
  const wanted = useRef(false);
  wanted.current ||= open;
  if (!wanted.current) return null;
  return (
    <Suspense>
      <TaskDialog open={open} onOpenChange={onOpenChange} projectId={projectId} source={source} />
    </Suspense>
  );
}

/** `focus`: the field that is focused first. */
export function EditTaskDialog({ task, open, onOpenChange, focus }: Shown & { task: Task; focus?: "title" | "agent" }) {
  if (!open) return null;
  return (
    <Suspense>
      <TaskDialog open onOpenChange={onOpenChange} task={task} focus={focus} />
    </Suspense>
  );
}
