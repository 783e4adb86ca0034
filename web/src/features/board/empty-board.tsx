/** The empty and loading states of the board. */
import { Link } from "@tanstack/react-router";
import { KanbanSquare, Plus } from "lucide-react";
import { COLUMN_ORDER } from "@/api/card-order";
import { useProjects } from "@/api/queries/projects";
import { Kbd } from "@/ui/badge";
import { Button } from "@/ui/button";
import { Empty, Skeleton } from "@/ui/states";

export function EmptyBoard({ onCreate }: { onCreate: () => void }) {
  const projects = useProjects();
  if (projects.data?.length === 0) {
    return (
      <Empty
        icon={<KanbanSquare className="size-7" aria-hidden />}
        title="Welcome to Sandyard"
        action={
          <Link
            to="/welcome"
            className="inline-flex h-8 items-center rounded-md bg-accent px-3 text-[13px] font-medium text-on-accent hover:bg-accent-hover"
          >
            Add a repository
          </Link>
        }
      >
        Three steps to get started: add a repository, choose an agent, create a task.
      </Empty>
    );
  }
  return (
    <Empty
      icon={<KanbanSquare className="size-7" aria-hidden />}
      title="No tasks yet"
      action={
        <div className="flex flex-wrap items-center justify-center gap-3">
          <Button look="primary" onClick={onCreate}>
            <Plus className="size-4" aria-hidden /> Create your first task
          </Button>
          <Link to="/welcome" className="text-[13px] text-accent underline underline-offset-2">
            Open setup guide
          </Link>
        </div>
      }
    >
      Describe what should be done, and an agent does it in its own sandbox. The card moves across the board
      automatically. Press <Kbd>c</Kbd> to create a task.
    </Empty>
  );
}

export function LoadingBoard() {
  return (
    <div
      role="status"
      aria-label="Loading board"
      className="flex min-h-0 flex-1 gap-2.5 overflow-hidden px-3 pb-3 sm:px-4"
    >
      {COLUMN_ORDER.slice(0, 4).map((column) => (
        <div
          key={column}
          className="flex w-[86vw] shrink-0 flex-col gap-2 rounded-lg border bg-sunken p-2 sm:w-auto sm:flex-1"
        >
          <Skeleton className="h-5 w-24 !bg-hover" />
          <Skeleton className="h-20 !bg-hover" />
          <Skeleton className="h-16 !bg-hover" />
        </div>
      ))}
    </div>
  );
}
