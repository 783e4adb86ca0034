import type { QueryClient } from "@tanstack/react-query";
import { api, got } from "@/api/client";
import type { Attempt, Task } from "@/api/types";
import type { Prompting, Way } from "./prompting";

export interface Prompt {
  text: string;
  /** Idempotency key: sending the same key twice creates one turn. */
  key?: string | undefined;
  model?: string | undefined;
  mode?: string | undefined;
}

/** Send a message to a session's agent: as the task's next round, as a retry of its attempt, or as a separate turn. */
export async function sendPrompt(
  client: QueryClient,
  to: { sessionId: string; task: Task | undefined; attempt: Attempt | undefined; allowed: Prompting; way: Way },
  prompt: Prompt,
): Promise<void> {
  const { sessionId, task, attempt, allowed, way } = to;
  if (way !== "round" || !task) {
    await got(
      api.POST("/api/v1/sessions/{session_id}/turns", { params: { path: { session_id: sessionId } }, body: prompt }),
    );
    return;
  }
  const params = { path: { task_id: task.id } };
  const moved = allowed.retry
    ? await got(
        api.POST("/api/v1/tasks/{task_id}/retry", {
          params,
          body: { message: prompt.text, attemptId: attempt?.id ?? null },
        }),
      )
    : await got(
        api.POST("/api/v1/tasks/{task_id}/move", {
          params,
          body: { status: "in_progress" as const, feedback: prompt.text },
        }),
      );
  client.setQueryData(["task", task.id], moved);
}
