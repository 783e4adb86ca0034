import { CornerDownLeft, Square } from "lucide-react";
import { useEffect, useRef, useState } from "react";
import { useAgents } from "@/api/queries/agents";
import { useAgentState, useCancelTurn, useSendPrompt } from "@/api/queries/conversation";
import { useProjects } from "@/api/queries/projects";
import type { Ask, Attempt, Message, Session, Task, Turn } from "@/api/types";
import { KeyNote } from "@/features/models/provider-help";
import { pluralize } from "@/lib/format";
import { agentOfSession, needsKey } from "@/model/agent-facts";
import { Kbd } from "@/ui/badge";
import { Button } from "@/ui/button";
import { Select } from "@/ui/field";
import { showError, toast } from "@/ui/toast";
import { answerOf, questionOf } from "./answer-text";
import { useAnswer } from "./ask";
import { modelsOf, modesOf, type Option, type SlashCommand, suggestCommands, withCurrent } from "./choices";
import { promptOf, useComments } from "./comments";
import { takesFocus } from "./focus";
import { useDraft } from "./prompt-draft";
import { promptOptions, promptTarget, type Way } from "./prompt-options";
import { Queue } from "./queue";
import { StartSandbox } from "./start-sandbox";

const MAX_LENGTH = 200_000;
const MAX_FEEDBACK_LENGTH = 50_000;
const DEFAULT = "-";

interface ComposerProps {
  session: Session;
  task: Task | undefined;
  attempt: Attempt | undefined;
  running: Turn | undefined;
  queued: Turn[];
  messages: Message[];
  asks: Ask[];
  onSent: () => void;
}

/** The message box: write the next prompt, answer a question, stop the agent. Unsent comments on the changes are sent along. */
export function Composer({ session, task, attempt, running, queued, messages, asks, onSent }: ComposerProps) {
  const [draft, setDraft] = useDraft(session.id);
  const [chosenWay, setWay] = useState<Way>();
  const [model, setModel] = useState<string>();
  const [mode, setMode] = useState<string>();
  const box = useRef<HTMLTextAreaElement>(null);
  const state = useAgentState(session.id).data;
  const agents = useAgents().data;
  const project = useProjects().data?.find((candidate) => candidate.id === session.projectId);
  const agent =
    agents?.find((candidate) => candidate.name === state?.agent) ?? agentOfSession(session, agents, project);
  const options = promptOptions(session, task, attempt);
  const way = chosenWay && options.ways.includes(chosenWay) ? chosenWay : (options.ways[0] ?? "chat");
  const commands = suggestCommands(state, draft);
  const question = questionOf(asks);
  const answer = useAnswer();
  const store = useComments(session.id);
  const comments = question ? [] : store.comments;

  const shown = !options.closed;
  useEffect(() => {
    if (shown && takesFocus(session.id)) box.current?.focus();
  }, [session.id, shown]);

  const send = useSendPrompt({
    onSuccess: (_, { source }) => {
      // Keep what was typed while the message was being sent.
      if (box.current === null || box.current.value.trim() === source?.draft) setDraft("");
      store.removeAll(source?.comments ?? []);
      onSent();
      setModel(undefined);
      setMode(undefined);
    },
    onError: showError("Could not send the message"),
    // If the response was lost, retry with the same key: it stays one turn.
    retry: (failures, error) => way === "chat" && failures < 2 && (error as { status?: number }).status === 0,
  });
  const busy = send.isPending || answer.isPending;
  const ready = (draft.trim() !== "" || comments.length > 0) && (question || options.ways.length > 0) && !busy;
  const reply = (asked: Ask) => {
    const given = answerOf(asked, draft.trim());
    if ("error" in given) toast.error("Could not send the answer", { description: given.error });
    else answer.mutate({ askId: asked.id, answer: given.body }, { onSuccess: () => setDraft("") });
  };
  const submit = () => {
    if (!ready) return;
    if (question) {
      reply(question);
      return;
    }
    send.mutate({
      sessionId: session.id,
      target: promptTarget(way, task, attempt, options),
      model,
      mode,
      text: comments.length ? promptOf(comments, [], draft) : draft.trim(),
      key: crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`,
      source: { draft: draft.trim(), comments: comments.map((comment) => comment.id) },
    });
  };

  if (options.closed)
    return <Closed session={session} reason={options.closed} provision={options.provision ?? false} />;
  return (
    <div className="shrink-0 border-t bg-surface px-2 py-2 sm:px-4">
      <div className="mx-auto max-w-3xl">
        <Queue turns={queued} messages={messages} />
        {agent && needsKey(agent, session.projectId) && (
          <div className="mb-1.5">
            <KeyNote agent={agent} projectId={session.projectId ?? undefined} />
          </div>
        )}
        {commands.length > 0 && (
          <SlashCommands
            commands={commands}
            onPick={(name) => {
              setDraft(`/${name} `);
              box.current?.focus();
            }}
          />
        )}
        <form
          onSubmit={(event) => {
            event.preventDefault();
            submit();
          }}
          className="rounded-lg border border-line-strong bg-raised focus-within:border-accent"
        >
          <textarea
            ref={box}
            data-composer={session.id}
            value={draft}
            rows={Math.min(10, Math.max(2, draft.split("\n").length))}
            maxLength={way === "round" ? MAX_FEEDBACK_LENGTH : MAX_LENGTH}
            aria-label={
              question
                ? "Answer to the agent"
                : way === "round" && !options.retry
                  ? "Feedback to the agent"
                  : "Message to the agent"
            }
            aria-describedby={`${session.id}-hint`}
            placeholder={
              question
                ? question.title
                : way === "round"
                  ? options.retry
                    ? "Tell the agent how to continue"
                    : "What should be different?"
                  : running
                    ? "Queue a message for when the agent is done"
                    : "Tell the agent what to do"
            }
            onChange={(event) => setDraft(event.target.value)}
            onKeyDown={(event) => {
              if (event.key !== "Enter" || event.shiftKey || event.nativeEvent.isComposing) return;
              event.preventDefault();
              submit();
            }}
            className="block w-full resize-none bg-transparent px-3 pt-2 text-[13.5px] focus-visible:outline-none"
          />
          {comments.length > 0 && (
            <p className="px-3 pb-1 text-xs text-soft" aria-live="polite">
              {pluralize(comments.length, "comment")} on the changes will be sent too.
            </p>
          )}
          <div className="flex flex-wrap items-center gap-1.5 px-2 pb-2">
            {options.ways.length > 1 && (
              <Select
                label="Send as"
                className="!h-7 !w-auto max-w-44 text-xs"
                value={way}
                onChange={(value) => setWay(value as Way)}
                choices={[
                  {
                    value: "round",
                    label: options.retry ? "Continue the task" : "Request changes",
                    detail: "Changes are checked, committed and pushed",
                  },
                  { value: "chat", label: "Chat only", detail: "Changes stay in the sandbox" },
                ]}
              />
            )}
            {way === "chat" && (
              <>
                <Setting
                  label="Model"
                  own="default"
                  now={model ?? session.model}
                  options={modelsOf(state, agent)}
                  onChange={setModel}
                />
                <Setting
                  label="Mode"
                  own="default"
                  now={mode ?? state?.mode ?? session.mode ?? project?.settings.agent?.mode ?? agent?.modes[0] ?? null}
                  options={modesOf(state, agent, project)}
                  onChange={setMode}
                />
              </>
            )}
            <span className="ml-auto flex items-center gap-1.5">
              <span className="hidden text-2xs text-faint md:inline">
                <Kbd>Enter</Kbd> to send, <Kbd>Shift</Kbd> <Kbd>Enter</Kbd> for a new line
              </span>
              {running && <StopButton turn={running} />}
              <Button type="submit" look="primary" size="sm" busy={busy} disabled={!ready}>
                <CornerDownLeft className="size-3.5" aria-hidden />
                {question
                  ? "Answer"
                  : way === "round"
                    ? options.retry
                      ? "Send and retry"
                      : "Request changes"
                    : running
                      ? "Queue"
                      : "Send"}
              </Button>
            </span>
          </div>
        </form>
        <p id={`${session.id}-hint`} className="mt-1 min-h-4 text-xs text-faint">
          {question
            ? "The agent is waiting for your answer."
            : options.hint[way] ||
              (session.archivedAt ? "This session is archived. Sending a message restores it." : "")}
        </p>
      </div>
    </div>
  );
}

function Setting({
  label,
  own,
  now,
  options,
  onChange,
}: {
  label: string;
  own: string;
  now: string | null;
  options: Option[];
  onChange: (value: string) => void;
}) {
  if (!options.length) return null;
  const shown =
    now === null
      ? { options: [{ value: DEFAULT, label: own }, ...options], value: DEFAULT }
      : withCurrent(options, now);
  return (
    <Select
      label={label}
      className="!h-7 !w-auto max-w-52 text-xs"
      value={shown.value}
      onChange={(value) => value !== DEFAULT && onChange(value)}
      prefix={`${label}: `}
      choices={shown.options}
    />
  );
}

function StopButton({ turn }: { turn: Turn }) {
  const stop = useCancelTurn({ onError: showError("Could not stop the agent") });
  return (
    <Button size="sm" busy={stop.isPending || turn.cancelAt !== null} onClick={() => stop.mutate(turn)}>
      <Square className="size-3 fill-current" aria-hidden /> {turn.cancelAt ? "Stopping" : "Stop agent"}
    </Button>
  );
}

function SlashCommands({ commands, onPick }: { commands: SlashCommand[]; onPick: (name: string) => void }) {
  return (
    <ul aria-label="Agent commands" className="mb-1.5 rounded-md border bg-raised p-1">
      {commands.map((command) => (
        <li key={command.name}>
          <button
            type="button"
            onClick={() => onPick(command.name)}
            className="flex w-full items-baseline gap-2 rounded px-2 py-1 text-left hover:bg-hover"
          >
            <span className="font-mono text-xs">/{command.name}</span>
            <span className="min-w-0 truncate text-xs text-soft">{command.description}</span>
          </button>
        </li>
      ))}
    </ul>
  );
}

function Closed({ session, reason, provision }: { session: Session; reason: string; provision: boolean }) {
  return (
    <div
      className="flex shrink-0 flex-wrap items-center gap-2 border-t bg-surface px-3 py-3 text-[13px] text-soft sm:px-4"
      role="status"
    >
      <p className="min-w-0 flex-1">{reason}</p>
      {provision && <StartSandbox sessionId={session.id} />}
    </div>
  );
}
