import { Link } from "@tanstack/react-router";
import { Columns2, Hourglass } from "lucide-react";
import { ApiError } from "@/api/client";
import { usePrefetchChanges } from "@/api/queries/git";
import { useSession } from "@/api/queries/sessions";
import type { Attempt, Session, Task } from "@/api/types";
import { useOpenPreview } from "@/features/previews/open-preview";
import { stripAnsi } from "@/lib/ansi";
import type { WorkSearch } from "@/lib/search-params";
import { useStored } from "@/lib/stored";
import { describeActivity } from "@/model/task-facts";
import { IconButton } from "@/ui/button";
import { Empty, ErrorState, Loading } from "@/ui/states";
import { type Tab, TabBar } from "@/ui/tabs";
import { useWide } from "@/ui/use-wide";
import { Panel, type WorkspaceContent } from "./panels";
import { useCheckedOut } from "./use-checked-out";

export interface WorkspaceProps {
  /** Null if the attempt has no session yet, or no longer. */
  sessionId: string | null;
  task?: Task | undefined;
  attempt?: Attempt | undefined;
  search: WorkSearch;
  onSearch: (change: Pick<WorkSearch, "tab" | "at">, replace?: boolean) => void;
}

/** An agent's work in tabs or, on a wide screen, the conversation beside one of the tabs. */
export function Workspace({ sessionId, task, attempt, search, onSearch }: WorkspaceProps) {
  const query = useSession(sessionId ?? "", { enabled: sessionId !== null });
  if (query.data) return <Tabs work={{ session: query.data, task, attempt }} search={search} onSearch={onSearch} />;
  const missing = sessionId === null || (query.error instanceof ApiError && query.error.status === 404);
  if (missing && attempt) return <NotYet attempt={attempt} projectId={task?.projectId} />;
  if (query.isPending && !query.error) return <Loading lines={6} />;
  return <ErrorState error={query.error} retry={() => query.refetch()} />;
}

function NotYet({ attempt, projectId }: { attempt: Attempt; projectId: string | undefined }) {
  const over = attempt.status !== "queued" && attempt.status !== "running";
  if (over) {
    return (
      <Empty title="Nothing to show for this attempt">
        It ended before its sandbox started{attempt.error ? `: ${attempt.error}` : ", or its session was deleted."}
      </Empty>
    );
  }
  return (
    <Empty
      title={attempt.status === "queued" ? "Queued" : describeActivity(attempt)}
      icon={<Hourglass className="size-6" aria-hidden />}
      action={
        attempt.stepDetail &&
        projectId && (
          <Link
            to="/projects/$projectId"
            params={{ projectId }}
            search={{ tab: "setup" }}
            className="text-[13px] text-accent underline underline-offset-2"
          >
            Project preparations
          </Link>
        )
      }
    >
      {attempt.stepOutput && (
        <span className="mb-2 block rounded bg-sunken px-2 py-1 text-left font-mono text-xs break-all">
          {stripAnsi(attempt.stepOutput)}
        </span>
      )}
      {attempt.queuePosition ? `Number ${attempt.queuePosition} in the queue. ` : ""}
      The conversation starts when the sandbox is ready.
    </Empty>
  );
}

function tabsOf({ session, task }: WorkspaceContent): Tab[] {
  const several = (task?.attempts.length ?? 0) > 1;
  const repository = Boolean(session.projectId);
  return [
    { id: "conversation", label: "Conversation" },
    { id: "output", label: "Output" },
    ...(repository ? [{ id: "changes", label: "Changes" }] : []),
    { id: "files", label: "Files" },
    { id: "terminal", label: "Terminal" },
    ...(repository
      ? [
          { id: "history", label: "History" },
          { id: "pull", label: "Pull request" },
        ]
      : []),
    { id: "sandbox", label: "Sandbox" },
    ...(several ? [{ id: "attempts", label: "Attempts", note: task?.attempts.length }] : []),
  ];
}

function Tabs({
  work,
  search,
  onSearch,
}: { work: WorkspaceContent & { session: Session } } & Pick<WorkspaceProps, "search" | "onSearch">) {
  const preview = useOpenPreview();
  const wide = useWide();
  const [split, setSplit] = useStored("workspace.split", true);
  const all = tabsOf(work);
  const beside = wide && split && !preview; // a preview takes the space of the second panel
  const tabs = beside ? all.slice(1) : all;
  const chosen =
    tabs.find((tab) => tab.id === search.tab) ??
    (tabs[beside ? tabs.findIndex((tab) => tab.id === "changes" || tab.id === "files") : 0] as Tab);
  const checkedOut = useCheckedOut(work.session, work.attempt);
  usePrefetchChanges(chosen.id === "changes" && checkedOut ? work.session.sandboxId : null);
  const panel = (id: string) => (
    <Panel id={id} work={work} at={search.at} onAt={(at) => onSearch({ tab: id, at }, true)} />
  );
  const bar = (
    <TabBar
      tabs={tabs}
      value={chosen.id}
      label="Workspace"
      onChange={(tab) => onSearch({ tab, at: undefined })}
      aside={
        wide &&
        !preview && (
          <IconButton
            label={split ? "Show conversation as a tab" : "Show conversation side by side"}
            aria-pressed={split}
            onClick={() => setSplit(!split)}
            side="left"
          >
            <Columns2 className="size-4" aria-hidden />
          </IconButton>
        )
      }
    >
      {panel(chosen.id)}
    </TabBar>
  );
  if (!wide) return bar;
  return (
    <div className="flex min-h-0 flex-1">
      {beside && (
        <section aria-label="Conversation and prompt" className="flex w-[44%] min-w-0 flex-col border-r">
          {panel("conversation")}
        </section>
      )}
      <div className="flex min-w-0 flex-1 flex-col">{bar}</div>
    </div>
  );
}
