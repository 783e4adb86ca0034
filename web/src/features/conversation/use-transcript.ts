import { useEffect, useMemo, useSyncExternalStore } from "react";
import { readMessages } from "@/api/queries/conversation";
import { useEvents } from "@/live/context";
import { TranscriptReader, type TranscriptState } from "./transcript-reader";

/** Return a session's messages and keep them up to date from events. */
export function useTranscript(sessionId: string): TranscriptState & { loadEarlier: () => void; retry: () => void } {
  const reader = useMemo(() => new TranscriptReader(readMessages(sessionId)), [sessionId]);
  useEvents(
    (event) => {
      if (event.sessionId === sessionId) reader.applyEvent(event);
    },
    () => reader.reset(),
  );
  useEffect(() => {
    reader.start();
    return () => reader.stop();
  }, [reader]);
  const state = useSyncExternalStore(reader.subscribe, reader.current);
  return useMemo(
    () => ({ ...state, loadEarlier: () => void reader.loadEarlier(), retry: () => reader.retry() }),
    [state, reader],
  );
}
