import { useMutation, useQueryClient } from "@tanstack/react-query";
import { api, got } from "@/api/client";
import type { Session } from "@/api/types";
import { failed } from "@/ui/toast";

/** Mutations of a session. */
export function useSessionVerbs(session: Session) {
  const client = useQueryClient();
  const path = { session_id: session.id };
  const changed = (made: Session) => {
    client.setQueryData<Session>(["session", session.id], (known) => ({
      ...known,
      ...made,
      sandbox: made.sandbox ?? known?.sandbox ?? null,
    }));
    void client.invalidateQueries({ queryKey: ["sessions"] });
  };
  const rename = useMutation({
    mutationFn: (title: string) =>
      got(api.PATCH("/api/v1/sessions/{session_id}", { params: { path }, body: { title } })),
    onSuccess: changed,
    onError: failed("Could not rename the session"),
  });
  const archive = useMutation({
    mutationFn: () => got(api.POST("/api/v1/sessions/{session_id}/archive", { params: { path } })),
    onSuccess: changed,
    onError: failed("Could not archive the session"),
  });
  const remove = useMutation({
    mutationFn: () => got(api.DELETE("/api/v1/sessions/{session_id}", { params: { path } })),
    onSuccess: () => client.invalidateQueries({ queryKey: ["sessions"] }),
    onError: failed("Could not delete the session"),
  });
  return { rename, archive, remove };
}
