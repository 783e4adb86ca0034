import { Link, useNavigate } from "@tanstack/react-router";
import { Bot, MessageSquare, ScrollText, SquareCheckBig } from "lucide-react";
import { useState } from "react";
import type { Attempt, Task } from "@/api/types";
import { focusComposer } from "@/features/conversation/focus";
import { EditTaskDialog } from "./new-task";

const LOOK =
  "inline-flex h-7 items-center gap-1 rounded-md border border-line-strong bg-surface px-2 text-xs font-medium hover:bg-hover";
const ICON = "size-3.5";

/** Actions for a verify command that still fails, besides a retry. Renders nothing for other failures. */
export function NextSteps({ task, attempt }: { task: Task; attempt: Attempt | undefined }) {
  const [editing, setEditing] = useState(false);
  const navigate = useNavigate({ from: "/tasks/$taskId" });
  if (attempt?.errorCode !== "verify_failed") return null;
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
      <button type="button" className={LOOK} onClick={() => setEditing(true)}>
        <Bot className={ICON} aria-hidden /> Change the agent
      </button>
      <Link to="/projects/$projectId" params={{ projectId: task.projectId }} search={{ tab: "setup" }} className={LOOK}>
        <SquareCheckBig className={ICON} aria-hidden /> Change the verify command
      </Link>
      {editing && <EditTaskDialog open task={task} onOpenChange={setEditing} />}
    </div>
  );
}
