/** The conversation of a session: turns, messages, questions and permission requests. */
import { useQuery } from "@tanstack/react-query";
import { api, readAllPages, type Schemas, unwrap } from "../client";
import { keys } from "../keys";
import { defineMutation } from "../mutation";
import { invalidate } from "../refresh";
import type { Ask, Turn } from "../types";
import { moveTask, retryTask, taskQuery } from "./tasks";

const sessionPath = (sessionId: string) => ({ params: { path: { session_id: sessionId } } });

/** The turns of a session, newest first. */
export const useTurns = (sessionId: string) =>
  useQuery({
    queryKey: keys.turns(sessionId),
    queryFn: () =>
      readAllPages((cursor) =>
        unwrap(
          api.GET("/api/v1/sessions/{session_id}/turns", {
            params: { ...sessionPath(sessionId).params, query: { cursor, limit: 200 } },
          }),
        ),
      ),
  });

export const useAgentState = (sessionId: string) =>
  useQuery({
    queryKey: keys.agentState(sessionId),
    queryFn: () => unwrap(api.GET("/api/v1/sessions/{session_id}/agent", sessionPath(sessionId))),
  });

/** Return a function that reads a page of a session's messages, newest first. */
export function readMessages(sessionId: string) {
  return (cursor: string | undefined, limit: number) =>
    unwrap(
      api.GET("/api/v1/sessions/{session_id}/messages", {
        params: { ...sessionPath(sessionId).params, query: { cursor, limit } },
      }),
    );
}

export interface Prompt {
  sessionId: string;
  text: string;
  /** A separate turn, or the next round of a task: with feedback, or as a retry of one of its attempts. */
  target:
    | { kind: "turn" }
    | { kind: "feedback"; taskId: string }
    | { kind: "retry"; taskId: string; attemptId: string | null };
  /** Idempotency key: sending the same key twice creates one turn. */
  key?: string | undefined;
  model?: string | undefined;
  mode?: string | undefined;
  /** What the text was composed of, for the caller's callbacks. */
  source?: { draft: string; comments: string[] };
}

/** Send a message to a session's agent. */
export const useSendPrompt = defineMutation({
  request: async ({ sessionId, text, target, key, model, mode }: Prompt, client) => {
    if (target.kind === "turn") {
      const body = { text, key, model, mode };
      await unwrap(api.POST("/api/v1/sessions/{session_id}/turns", { ...sessionPath(sessionId), body }));
      return;
    }
    const task =
      target.kind === "retry"
        ? await retryTask({ id: target.taskId, message: text, attemptId: target.attemptId })
        : await moveTask({ id: target.taskId, status: "in_progress", feedback: text });
    client.setQueryData(taskQuery(task.id).queryKey, task);
  },
  onSuccess: (client, _, { sessionId }) => void invalidate(client, keys.turns(sessionId), keys.session(sessionId)),
});

/** Stop a running turn, or remove a queued one. */
export const useCancelTurn = defineMutation({
  request: (turn: Turn) =>
    unwrap(api.POST("/api/v1/turns/{turn_id}/cancel", { params: { path: { turn_id: turn.id } } })),
  onSettled: (client, turn) => client.invalidateQueries({ queryKey: keys.turns(turn.sessionId) }),
});

export const useRetryTurn = defineMutation({
  request: (turn: Turn) =>
    unwrap(api.POST("/api/v1/turns/{turn_id}/retry", { params: { path: { turn_id: turn.id } } })),
  onSuccess: (client, _, turn) => client.invalidateQueries({ queryKey: keys.turns(turn.sessionId) }),
});

/** Pending permission requests and questions, newest first. */
export const usePendingAsks = () =>
  useQuery({
    queryKey: keys.pendingAsks(),
    queryFn: () =>
      readAllPages((cursor) =>
        unwrap(api.GET("/api/v1/asks", { params: { query: { status: "pending", cursor, limit: 200 } } })),
      ),
  });

export const useSessionAsks = (sessionId: string) =>
  useQuery({
    queryKey: keys.sessionAsks(sessionId),
    queryFn: () =>
      readAllPages((cursor) =>
        unwrap(api.GET("/api/v1/asks", { params: { query: { sessionId, cursor, limit: 200 } } })),
      ),
  });

export const useAnswerAsk = defineMutation({
  request: ({ askId, answer }: { askId: string; answer: Schemas["Answer"] }) =>
    unwrap(api.POST("/api/v1/asks/{ask_id}/answer", { params: { path: { ask_id: askId } }, body: answer })),
  onSuccess: (client, answered) =>
    void client.setQueriesData<Ask[]>({ queryKey: keys.asks() }, (asks) =>
      asks?.map((ask) => (ask.id === answered.id ? answered : ask)),
    ),
  onSettled: (client) => client.invalidateQueries({ queryKey: keys.asks() }),
});

/** Allow what the project's policy denied, for the rest of the session, and resume the agent. */
export const useAllowAsks = defineMutation({
  request: async (asks: readonly Ask[]) => {
    for (const [index, ask] of asks.entries()) {
      const body = { resume: index === asks.length - 1 };
      await unwrap(api.POST("/api/v1/asks/{ask_id}/allow", { params: { path: { ask_id: ask.id } }, body }));
    }
  },
  onSettled: (client) => client.invalidateQueries({ queryKey: keys.asks() }),
});
