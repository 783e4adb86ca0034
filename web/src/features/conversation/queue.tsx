import { useMutation, useQueryClient } from "@tanstack/react-query";
import { Clock, X } from "lucide-react";
import { api, got } from "@/api/client";
import type { Message, Turn } from "@/api/types";
import { IconButton } from "@/ui/button";
import { failed } from "@/ui/toast";
import { saidBy } from "./parts";

/** The prompts queued for the agent, next one first. */
export function Queue({ turns, messages }: { turns: Turn[]; messages: Message[] }) {
  if (!turns.length) return null;
  const said = new Map(messages.map((one) => [one.id, one]));
  return (
    <ul aria-label="Queued prompts" className="mb-1.5 flex max-h-28 flex-col gap-1 overflow-y-auto">
      {turns.map((turn) => {
        const message = turn.promptId ? said.get(turn.promptId) : undefined;
        return <Waiting key={turn.id} turn={turn} text={message ? saidBy(message) : "Prompt"} />;
      })}
    </ul>
  );
}

function Waiting({ turn, text }: { turn: Turn; text: string }) {
  const client = useQueryClient();
  const cancel = useMutation({
    mutationFn: () => got(api.POST("/api/v1/turns/{turn_id}/cancel", { params: { path: { turn_id: turn.id } } })),
    onError: failed("Could not remove the prompt from the queue"),
    onSettled: () => client.invalidateQueries({ queryKey: ["turns", turn.sessionId] }),
  });
  return (
    <li className="flex items-center gap-2 rounded-md bg-idle-soft px-2 text-xs">
      <Clock className="size-3.5 shrink-0 text-faint" aria-hidden />
      <span className="shrink-0 text-soft">Queued</span>
      <span className="min-w-0 flex-1 truncate">{text}</span>
      <IconButton
        label="Remove from queue"
        size="sm"
        busy={cancel.isPending}
        onClick={() => cancel.mutate()}
        side="top"
      >
        <X className="size-3.5" aria-hidden />
      </IconButton>
    </li>
  );
}
