import { Link, useNavigate } from "@tanstack/react-router";
import { Bot, GitCompare, KeyRound, MessageSquare, ScrollText, Settings, SquareCheckBig } from "lucide-react";
import { useState } from "react";
import type { Attempt, Task } from "@/api/types";
import { focusComposer } from "@/features/conversation/focus";
import { EditTaskDialog } from "./new-task";

const LOOK =
  "inline-flex h-7 items-center gap-1 rounded-md border border-line-strong bg-surface px-2 text-xs font-medium hover:bg-hover";
const ICON = "size-3.5";

const CREDENTIAL_ERRORS = ["remote_refused", "forge_unauthorized", "forge_forbidden"];

/** Return whether the sandbox could not be created with the project's template, isolation or containers. */
function isSandboxRefused(attempt: Attempt | undefined): boolean {
  if (attempt?.errorCode === "template_not_found") return true;
  const failed = attempt?.steps?.findLast((step) => step.status === "failed")?.name ?? "";
  return attempt?.errorCode === "engine_invalid" && ["setup", "provision"].includes(failed);
}

/** Actions that can remove the cause of a failure, besides a retry. Renders nothing for other failures. */
export function NextSteps({ task, attempt }: { task: Task; attempt: Attempt | undefined }) {
  const code = attempt?.errorCode ?? "";
  if (code === "model_busy" || code === "model_unknown") return <ModelSteps task={task} />;
  if (code === "ci_files") return <CiFilesSteps task={task} />;
  if (code === "verify_failed") return <VerifySteps task={task} attempt={attempt as Attempt} />;
  const [tab, Icon, label] = CREDENTIAL_ERRORS.includes(code)
    ? (["access", KeyRound, "Replace the token or key"] as const)
    : isSandboxRefused(attempt)
      ? (["setup", Settings, "Change the sandbox settings"] as const)
      : [null, null, null];
  if (!tab) return null;
  return (
    <div className="mt-1.5 flex flex-wrap gap-1.5">
      <Link to="/projects/$projectId" params={{ projectId: task.projectId }} search={{ tab }} className={LOOK}>
        <Icon className={ICON} aria-hidden /> {label}
      </Link>
    </div>
  );
}

/** The branch changes what continuous integration runs: after a review, the project can allow it. */
function CiFilesSteps({ task }: { task: Task }) {
  return (
    <div className="mt-1.5 flex flex-wrap gap-1.5">
      <Link from="/tasks/$taskId" to="." search={(search) => ({ ...search, tab: "changes" })} className={LOOK}>
        <GitCompare className={ICON} aria-hidden /> Review the changes
      </Link>
      <Link to="/projects/$projectId" params={{ projectId: task.projectId }} search={{ tab: "forge" }} className={LOOK}>
        <Settings className={ICON} aria-hidden /> Allow changes of CI files
      </Link>
    </div>
  );
}

/** A model that is rate-limited or missing: another one may work. */
function ModelSteps({ task }: { task: Task }) {
  return (
    <div className="mt-1.5 flex flex-wrap gap-1.5">
      <ChangeAgent task={task} label="Change the agent or model" />
    </div>
  );
}

function ChangeAgent({ task, label }: { task: Task; label: string }) {
  const [editing, setEditing] = useState(false);
  return (
    <>
      <button type="button" className={LOOK} onClick={() => setEditing(true)}>
        <Bot className={ICON} aria-hidden /> {label}
      </button>
      {editing && <EditTaskDialog open task={task} onOpenChange={setEditing} focus="agent" />}
    </>
  );
}

function VerifySteps({ task, attempt }: { task: Task; attempt: Attempt }) {
  const navigate = useNavigate({ from: "/tasks/$taskId" });
  const tell = async () => {
    await navigate({ search: (search) => ({ ...search, tab: "conversation", at: undefined }) });
    if (attempt.sessionId) focusComposer(attempt.sessionId);
  };
  return (
    <div className="mt-1.5 flex flex-wrap gap-1.5">
      <button type="button" className={LOOK} onClick={tell}>
        <MessageSquare className={ICON} aria-hidden /> Tell the agent what to do
      </button>
      <Link from="/tasks/$taskId" to="." search={(search) => ({ ...search, tab: "output" })} className={LOOK}>
        <ScrollText className={ICON} aria-hidden /> Show output
      </Link>
      <ChangeAgent task={task} label="Change the agent" />
      <Link to="/projects/$projectId" params={{ projectId: task.projectId }} search={{ tab: "setup" }} className={LOOK}>
        <SquareCheckBig className={ICON} aria-hidden /> Change the verify command
      </Link>
    </div>
  );
}
