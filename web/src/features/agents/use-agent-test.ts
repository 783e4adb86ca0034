import { useRef, useState } from "react";
import { readSessionEvents, useStartAgentTest } from "@/api/queries/agents";
import type { PlatformEvent } from "@/api/types";
import { useEvents } from "@/live/context";
import { showError } from "@/ui/toast";
import { progressOf, type TestProgress } from "./test-progress";

/** Test an agent in the background and follow its events. Events from before its session id was known are read afterwards. */
export function useAgentTest(name: string): { progress: TestProgress | null; start: () => void; busy: boolean } {
  const session = useRef<string | null>(null);
  const [events, setEvents] = useState<PlatformEvent[] | null>(null);
  const addEvents = (added: PlatformEvent[]) => setEvents((known) => [...(known ?? []), ...added]);
  const readPast = async () => {
    if (session.current) addEvents(await readSessionEvents(session.current));
  };
  useEvents(
    (event) => {
      if (session.current && event.sessionId === session.current && event.kind !== "message.delta") addEvents([event]);
    },
    () => void readPast().catch(() => undefined),
  );
  const start = useStartAgentTest({
    onSuccess: async (sessionId) => {
      session.current = sessionId;
      setEvents([]);
      await readPast();
    },
    onError: showError("Could not test the agent"),
  });
  const progress = events && progressOf(events);
  return {
    progress,
    start: () => start.mutate(name),
    busy: start.isPending || (progress !== null && !progress.over),
  };
}
