import { Clock, X } from "lucide-react";
import { useCancelTurn } from "@/api/queries/conversation";
import type { Message, Turn } from "@/api/types";
import { IconButton } from "@/ui/button";
import { showError } from "@/ui/toast";
import { messageText } from "./message-parts";

/** The prompts queued for the agent, next one first. */
export function Queue({ turns, messages }: { turns: Turn[]; messages: Message[] }) {
  if (!turns.length) return null;
  const messagesById = new Map(messages.map((message) => [message.id, message]));
  return (
    <ul aria-label="Queued prompts" className="mb-1.5 flex max-h-28 flex-col gap-1 overflow-y-auto">
      {turns.map((turn) => {
        const message = turn.promptId ? messagesById.get(turn.promptId) : undefined;
        return <QueuedPrompt key={turn.id} turn={turn} text={message ? messageText(message) : "Prompt"} />;
      })}
    </ul>
  );
}

function QueuedPrompt({ turn, text }: { turn: Turn; text: string }) {
  const cancel = useCancelTurn({ onError: showError("Could not remove the prompt from the queue") });
  return (
    <li className="flex items-center gap-2 rounded-md bg-idle-soft px-2 text-xs">
      <Clock className="size-3.5 shrink-0 text-faint" aria-hidden />
      <span className="shrink-0 text-soft">Queued</span>
      <span className="min-w-0 flex-1 truncate">{text}</span>
      <IconButton
        label="Remove from queue"
        size="sm"
        busy={cancel.isPending}
        onClick={() => cancel.mutate(turn)}
        side="top"
      >
        <X className="size-3.5" aria-hidden />
      </IconButton>
    </li>
  );
}
