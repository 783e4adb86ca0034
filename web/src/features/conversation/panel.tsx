import { MessagesSquare } from "lucide-react";
import { useMemo, useState } from "react";
import { useSessionAsks, useTurns } from "@/api/queries/conversation";
import { useSession } from "@/api/queries/sessions";
import type { Ask, Attempt, Task, Turn } from "@/api/types";
import { isAtWork } from "@/model/task-facts";
import { Markdown } from "@/ui/markdown";
import { Empty, ErrorState, Loading } from "@/ui/states";
import { Composer } from "./composer";
import { ConversationList } from "./conversation-list";
import { PinnedPlan } from "./plan";
import { lacksSandbox } from "./prompt-options";
import { isOpen, latestPlan, rowsOf } from "./rows";
import { useTranscript } from "./use-transcript";
import { PeopleProvider, useNames } from "./user-names";

const NO_TURNS: Turn[] = [];
const NO_ASKS: Ask[] = [];

/** The live conversation of a session, with the message box. */
export function ConversationPanel({
  sessionId,
  task,
  attempt,
}: {
  sessionId: string;
  task?: Task | undefined;
  attempt?: Attempt | undefined;
}) {
  const [sent, setSent] = useState(0);
  const session = useSession(sessionId);
  const transcript = useTranscript(sessionId);
  const turns = useTurns(sessionId).data ?? NO_TURNS;
  const asks = useSessionAsks(sessionId).data ?? NO_ASKS;
  const name = useNames(session.data?.projectId);
  const rows = useMemo(
    () => rowsOf(transcript.messages, turns, asks, transcript.hasEarlier),
    [transcript.messages, transcript.hasEarlier, turns, asks],
  );
  const byId = useMemo(() => new Map(turns.map((turn) => [turn.id, turn])), [turns]);
  const running = turns.find((turn) => turn.status === "running" || turn.status === "waiting");
  const queued = useMemo(
    () => turns.filter((turn) => turn.status === "queued").sort((one, other) => one.number - other.number),
    [turns],
  );
  const open = turns.some(isOpen);
  const plan = useMemo(() => (open ? latestPlan(transcript.messages) : undefined), [transcript.messages, open]);

  return (
    <PeopleProvider value={name}>
      <div className="flex min-h-0 min-w-0 flex-1 flex-col">
        {plan && <PinnedPlan message={plan} />}
        {transcript.state === "failed" ? (
          <ErrorState error={transcript.error} retry={transcript.retry} />
        ) : transcript.state === "loading" ? (
          <div className="min-h-0 flex-1">
            <Loading lines={6} />
          </div>
        ) : rows.length === 0 && !running ? (
          <div className="min-h-0 flex-1 overflow-y-auto">
            {queued.length || (attempt && isAtWork(attempt)) ? (
              <Empty title="The agent is about to start" icon={<MessagesSquare className="size-6" aria-hidden />} />
            ) : (
              <Empty
                title={task ? "The agent did not start" : "No messages yet"}
                icon={<MessagesSquare className="size-6" aria-hidden />}
              >
                {task ? undefined : "Write below what the agent should do."}
              </Empty>
            )}
            {task?.description.trim() && (
              <section aria-label="Description" className="mx-auto max-w-3xl rounded-lg border bg-surface px-4 py-3">
                <Markdown text={task.description} />
              </section>
            )}
          </div>
        ) : (
          <ConversationList
            key={`said:${sessionId}`}
            rows={rows}
            turns={byId}
            running={running}
            hasEarlier={transcript.hasEarlier}
            loadingEarlier={transcript.loadingEarlier}
            loadEarlier={transcript.loadEarlier}
            ofTask={task !== undefined}
            projectId={session.data?.projectId ?? undefined}
            agent={session.data?.agent ?? undefined}
            lacksSandbox={session.data ? lacksSandbox(session.data) : false}
            sent={sent}
          />
        )}
        {session.data && (
          <Composer
            key={`next:${session.data.id}`}
            session={session.data}
            task={task}
            attempt={attempt}
            running={running}
            queued={queued}
            messages={transcript.messages}
            asks={asks}
            onSent={() => setSent((before) => before + 1)}
          />
        )}
      </div>
    </PeopleProvider>
  );
}
