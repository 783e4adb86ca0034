import { Box, GitBranch } from "lucide-react";
import { lazy, Suspense } from "react";
import type { Attempt, Session, Task } from "@/api/types";
import { Operations } from "@/features/changes/operations";
import { Empty, Loading } from "@/ui/states";
import { lacksSandbox } from "../conversation/prompt-options";
import { Boundary } from "./boundary";
import { useCheckedOut } from "./use-checked-out";

const ConversationPanel = lazy(() =>
  import("../conversation/panel").then((module) => ({ default: module.ConversationPanel })),
);
const OutputPanel = lazy(() => import("../output/panel").then((module) => ({ default: module.OutputPanel })));
const ChangesPanel = lazy(() => import("../changes/panel").then((module) => ({ default: module.ChangesPanel })));
const FilesPanel = lazy(() => import("../files/panel").then((module) => ({ default: module.FilesPanel })));
const TerminalPanel = lazy(() => import("../terminal/panel").then((module) => ({ default: module.TerminalPanel })));
const HistoryPanel = lazy(() => import("../history/panel").then((module) => ({ default: module.HistoryPanel })));
const PullPanel = lazy(() => import("../pulls/panel").then((module) => ({ default: module.PullPanel })));
const SandboxPanel = lazy(() => import("../sandboxes/panel").then((module) => ({ default: module.SandboxPanel })));
const AttemptsPanel = lazy(() =>
  import("@/features/attempts/panel").then((module) => ({ default: module.AttemptsPanel })),
);

const WORKSPACE = "/home/user/workspace";
const HOME = "/home/user";
const OF_CHECKOUT = ["changes", "files", "history", "pull"];

export interface WorkspaceContent {
  session: Session;
  task?: Task | undefined;
  attempt?: Attempt | undefined;
}

/** The content of one tab, loaded when first shown. */
export function Panel({
  id,
  work,
  at,
  onAt,
}: {
  id: string;
  work: WorkspaceContent;
  at: string | undefined;
  onAt: (at: string | undefined) => void;
}) {
  return (
    <Boundary key={`${id}:${work.session.id}`}>
      <Suspense fallback={<Loading />}>
        <Chosen id={id} work={work} at={at} onAt={onAt} />
      </Suspense>
    </Boundary>
  );
}

function Chosen({ id, work: { session, task, attempt }, at, onAt }: Parameters<typeof Panel>[0]) {
  const checkedOut = useCheckedOut(session, attempt);
  if (id === "conversation")
    return <ConversationPanel key={session.id} sessionId={session.id} task={task} attempt={attempt} />;
  if (id === "attempts" && task) return <AttemptsPanel task={task} />;
  const sandboxId = session.sandboxId;
  if (!sandboxId) {
    return (
      <Empty title="No sandbox" icon={<Box className="size-6" aria-hidden />}>
        The session has no sandbox yet, or it no longer exists. Messages are in the conversation.
      </Empty>
    );
  }
  if (!checkedOut && OF_CHECKOUT.includes(id)) {
    if (checkedOut === undefined) return <Loading lines={8} />;
    return (
      <>
        <Operations sandboxId={sandboxId} />
        <Empty title="No checkout yet" icon={<GitBranch className="size-6" aria-hidden />}>
          This appears once the repository is checked out in the sandbox.
        </Empty>
      </>
    );
  }
  const projectId = session.projectId ?? "";
  const gone = lacksSandbox(session);
  if (id === "output")
    return <OutputPanel sandboxId={sandboxId} checkedOut={checkedOut === true} at={at} onAt={onAt} />;
  if (id === "changes")
    return <ChangesPanel sandboxId={sandboxId} session={session} gone={gone} task={task} attempt={attempt} />;
  if (id === "files")
    return <FilesPanel sandboxId={sandboxId} root={session.projectId ? WORKSPACE : HOME} at={at} onAt={onAt} />;
  if (id === "terminal") return <TerminalPanel sandboxId={sandboxId} />;
  if (id === "history")
    return <HistoryPanel sandboxId={sandboxId} sessionId={session.id} projectId={projectId} gone={gone} />;
  if (id === "pull")
    return <PullPanel sessionId={session.id} sandboxId={sandboxId} projectId={projectId} taskId={task?.id} />;
  return <SandboxPanel sandboxId={sandboxId} sessionId={session.id} />;
}
