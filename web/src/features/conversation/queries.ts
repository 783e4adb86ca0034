import { queryOptions } from "@tanstack/react-query";
import { all, api, got } from "@/api/client";

/** The turns of a session, newest first. */
export const turns = (sessionId: string) =>
  queryOptions({
    queryKey: ["turns", sessionId],
    queryFn: () =>
      all((cursor) =>
        got(
          api.GET("/api/v1/sessions/{session_id}/turns", {
            params: { path: { session_id: sessionId }, query: { cursor, limit: 200 } },
          }),
        ),
      ),
  });

export const sessionAsks = (sessionId: string) =>
  queryOptions({
    queryKey: ["asks", "session", sessionId],
    queryFn: () =>
      all((cursor) => got(api.GET("/api/v1/asks", { params: { query: { sessionId, cursor, limit: 200 } } }))),
  });

export const agentState = (sessionId: string) =>
  queryOptions({
    queryKey: ["agent", sessionId],
    queryFn: () => got(api.GET("/api/v1/sessions/{session_id}/agent", { params: { path: { session_id: sessionId } } })),
  });

export const members = (projectId: string) =>
  queryOptions({
    queryKey: ["members", projectId],
    queryFn: async () =>
      (await got(api.GET("/api/v1/projects/{project_id}/members", { params: { path: { project_id: projectId } } })))
        .items,
  });

export function readMessages(sessionId: string) {
  return (cursor: string | undefined, limit: number) =>
    got(
      api.GET("/api/v1/sessions/{session_id}/messages", {
        params: { path: { session_id: sessionId }, query: { cursor, limit } },
      }),
    );
}
