import { Link, useNavigate, useParams, useSearch } from "@tanstack/react-router";
import { lazy, Suspense } from "react";
import { useSandbox } from "@/api/queries/sandboxes";
import { SANDBOXES } from "@/model/status-labels";
import { useTitle } from "@/ui/page";
import { Loaded, Loading } from "@/ui/states";
import { Status } from "@/ui/status";
import { TabBar } from "@/ui/tabs";
import { SandboxPanel } from "./panel";

const OutputPanel = lazy(() => import("../output/panel").then((module) => ({ default: module.OutputPanel })));
const FilesPanel = lazy(() => import("../files/panel").then((module) => ({ default: module.FilesPanel })));
const TerminalPanel = lazy(() => import("../terminal/panel").then((module) => ({ default: module.TerminalPanel })));

const TABS = [
  { id: "sandbox", label: "Sandbox" },
  { id: "output", label: "Output" },
  { id: "files", label: "Files" },
  { id: "terminal", label: "Terminal" },
];

/** The page of one sandbox, with or without a session. */
export function SandboxPage() {
  const { sandboxId } = useParams({ from: "/inside/sandboxes/$sandboxId" });
  const search = useSearch({ from: "/inside/sandboxes/$sandboxId" });
  const navigate = useNavigate({ from: "/sandboxes/$sandboxId" });
  const query = useSandbox(sandboxId);
  useTitle(`Sandbox ${sandboxId}`);
  const tab = TABS.find((candidate) => candidate.id === search.tab)?.id ?? "sandbox";
  const setSelection = (value: string | undefined) => navigate({ search: { ...search, at: value }, replace: true });
  return (
    <Loaded query={query}>
      {(row) => (
        <>
          <header className="flex flex-wrap items-center gap-2 px-3 py-2 sm:px-4">
            <h1 className="mr-1 min-w-0 truncate text-[15px] font-semibold">Sandbox {row.id}</h1>
            <Status status={SANDBOXES[row.status]} />
            <span className="ml-auto flex gap-3 text-[13px]">
              {row.taskId && (
                <Link to="/tasks/$taskId" params={{ taskId: row.taskId }} className="text-accent underline">
                  Open task
                </Link>
              )}
              {row.sessionId && (
                <Link to="/sessions/$sessionId" params={{ sessionId: row.sessionId }} className="text-accent underline">
                  Open session
                </Link>
              )}
            </span>
          </header>
          <TabBar tabs={TABS} value={tab} label="Sandbox" onChange={(id) => navigate({ search: { tab: id } })}>
            <Suspense fallback={<Loading />}>
              {tab === "sandbox" && <SandboxPanel sandboxId={row.id} />}
              {tab === "output" && <OutputPanel sandboxId={row.id} at={search.at} onAt={setSelection} />}
              {tab === "files" && (
                <FilesPanel sandboxId={row.id} root="/home/user" at={search.at} onAt={setSelection} />
              )}
              {tab === "terminal" && <TerminalPanel sandboxId={row.id} />}
            </Suspense>
          </TabBar>
        </>
      )}
    </Loaded>
  );
}
