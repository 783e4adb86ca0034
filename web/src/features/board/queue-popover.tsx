import { Link } from "@tanstack/react-router";
import { ListOrdered } from "lucide-react";
import { useAgents } from "@/api/queries/agents";
import { useQueue } from "@/api/queries/tasks";
import { titleOf } from "@/model/agent-facts";
import { Button } from "@/ui/button";
import { Popover } from "@/ui/menu";
import { Empty, Loaded } from "@/ui/states";
import { Ago } from "@/ui/time";

/** The queued attempts in order, with the reason why each is waiting. */
export function QueuePopover() {
  const queue = useQueue();
  const agents = useAgents().data;
  const count = queue.data?.length ?? 0;
  return (
    <Popover
      label="Queue"
      className="max-h-[70vh] w-[min(24rem,92vw)] overflow-y-auto"
      trigger={
        <Button>
          <ListOrdered className="size-3.5" aria-hidden />
          Queue
          {count > 0 && <span className="rounded bg-info-soft px-1 text-2xs text-info tabular-nums">{count}</span>}
          <span className="sr-only">{count === 0 ? "nothing" : count === 1 ? "attempt" : "attempts"} waiting</span>
        </Button>
      }
    >
      <h2 className="mb-2 text-[13px] font-semibold">Waiting to run</h2>
      <Loaded query={queue}>
        {(items) =>
          items.length === 0 ? (
            <Empty title="The queue is empty">Started tasks run immediately while there is capacity.</Empty>
          ) : (
            <ol className="flex flex-col gap-2">
              {items.map((attempt) => (
                <li key={attempt.attemptId} className="flex gap-2 text-[13px]">
                  <span className="w-6 shrink-0 text-right text-faint tabular-nums">
                    <span className="sr-only">Position </span>
                    {attempt.position}
                  </span>
                  <div className="min-w-0">
                    <Link
                      to="/tasks/$taskId"
                      params={{ taskId: attempt.taskId }}
                      className="block truncate font-medium hover:text-accent"
                    >
                      {attempt.title}
                    </Link>
                    <p className="text-xs text-soft">{attempt.reason}</p>
                    <p className="text-2xs text-faint">
                      attempt {attempt.number}
                      {attempt.round > 1 && `, round ${attempt.round}`} · {titleOf(attempt.agent, agents)}
                      {attempt.model && `, ${attempt.model}`} · <Ago at={attempt.queuedAt} />
                    </p>
                  </div>
                </li>
              ))}
            </ol>
          )
        }
      </Loaded>
    </Popover>
  );
}
