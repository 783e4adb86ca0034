/** Sessions: conversations with an agent, each with a sandbox. */
import { type QueryClient, queryOptions, useQuery, useQueryClient } from "@tanstack/react-query";
import { useCallback } from "react";
import { api, readAllPages, type Schemas, unwrap } from "../client";
import { keys } from "../keys";
import { defineMutation } from "../mutation";
import type { Session } from "../types";

const pathOf = (id: string) => ({ params: { path: { session_id: id } } });

const sessionQuery = (id: string) =>
  queryOptions({
    queryKey: keys.session(id),
    queryFn: () => unwrap(api.GET("/api/v1/sessions/{session_id}", pathOf(id))),
  });

export const useSession = (id: string, options: { enabled?: boolean } = {}) =>
  useQuery({ ...sessionQuery(id), ...options });

/** Return a function that reads a session, from the cache if it is there. */
export function useReadSession(): (id: string) => Promise<Session> {
  const client = useQueryClient();
  return useCallback((id) => client.ensureQueryData(sessionQuery(id)), [client]);
}

/** Sessions that do not belong to a task, of one project or of all. */
export const useSessions = (projectId: string | undefined, archived: boolean) =>
  useQuery({
    queryKey: keys.sessions(projectId, archived),
    queryFn: async () => {
      const sessions = await readAllPages(
        (cursor) =>
          unwrap(api.GET("/api/v1/sessions", { params: { query: { projectId, archived, cursor, limit: 200 } } })),
        2000,
      );
      return sessions.filter((session) => !session.taskId);
    },
  });

/** The newest sessions that do not belong to a task, of all projects. */
export const useRecentSessions = () =>
  useQuery({
    queryKey: keys.recentSessions(),
    queryFn: async () => {
      const page = await unwrap(api.GET("/api/v1/sessions", { params: { query: { archived: false, limit: 200 } } }));
      return page.items.filter((session) => !session.taskId);
    },
  });

export const useCreateSession = defineMutation({
  request: (body: Schemas["NewSession"]) => unwrap(api.POST("/api/v1/sessions", { body })),
  onSuccess: (client, session) => {
    client.setQueryData(sessionQuery(session.id).queryKey, session);
    void client.invalidateQueries({ queryKey: keys.allSessions() });
  },
});

export const useForkSession = defineMutation({
  request: (id: string) => unwrap(api.POST("/api/v1/sessions/{session_id}/fork", { ...pathOf(id), body: {} })),
  onSuccess: (client, session) => {
    client.setQueryData(sessionQuery(session.id).queryKey, session);
    void client.invalidateQueries({ queryKey: keys.allSessions() });
  },
});

/** Responses to changes may lack the sandbox: keep the known one. */
function showSession(client: QueryClient, session: Session): void {
  client.setQueryData(sessionQuery(session.id).queryKey, (known) => ({
    ...known,
    ...session,
    sandbox: session.sandbox ?? known?.sandbox ?? null,
  }));
  void client.invalidateQueries({ queryKey: keys.allSessions() });
}

export const useRenameSession = defineMutation({
  request: ({ id, title }: { id: string; title: string }) =>
    unwrap(api.PATCH("/api/v1/sessions/{session_id}", { ...pathOf(id), body: { title } })),
  onSuccess: showSession,
});

export const useArchiveSession = defineMutation({
  request: (id: string) => unwrap(api.POST("/api/v1/sessions/{session_id}/archive", pathOf(id))),
  onSuccess: showSession,
});

export const useDeleteSession = defineMutation({
  request: (id: string) => unwrap(api.DELETE("/api/v1/sessions/{session_id}", pathOf(id))),
  onSuccess: (client) => client.invalidateQueries({ queryKey: keys.allSessions() }),
});

/** Start a new sandbox for a session whose sandbox failed or was deleted. */
export const useProvisionSandbox = defineMutation({
  request: (id: string) => unwrap(api.POST("/api/v1/sessions/{session_id}/provision", pathOf(id))),
  onSuccess: (client, session, id) => {
    client.setQueryData(sessionQuery(id).queryKey, session);
    return client.invalidateQueries({ queryKey: keys.session(id) });
  },
});

/** How to open the session's sandbox in an editor or over SSH. */
export const useRemoteAccess = (sessionId: string) =>
  useQuery({
    queryKey: keys.remoteAccess(sessionId),
    queryFn: () => unwrap(api.GET("/api/v1/sessions/{session_id}/remote", pathOf(sessionId))),
  });
