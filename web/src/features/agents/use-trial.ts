import { useMutation } from "@tanstack/react-query";
import { useRef, useState } from "react";
import { api, got } from "@/api/client";
import type { PlatformEvent } from "@/api/types";
import { useEvents } from "@/live/context";
import { failed } from "@/ui/toast";
import { type Trial, trialOf } from "./trial";

/** Test an agent in the background and follow its events. Events from before its session id was known are read afterwards. */
export function useTrial(name: string): { trial: Trial | null; begin: () => void; busy: boolean } {
  const session = useRef<string | null>(null);
  const [heard, setHeard] = useState<PlatformEvent[] | null>(null);
  const hear = (events: PlatformEvent[]) => setHeard((known) => [...(known ?? []), ...events]);
  const read = async () => {
    if (!session.current) return;
    const query = { sessionId: session.current, limit: 200 };
    hear((await got(api.GET("/api/v1/events/history", { params: { query } }))).items);
  };
  useEvents(
    (event) => {
      if (session.current && event.sessionId === session.current && event.kind !== "message.delta") hear([event]);
    },
    () => void read().catch(() => undefined),
  );
  const start = useMutation({
    mutationFn: async () => {
      const begun = await got(
        api.POST("/api/v1/agents/{agent_name}/test", {
          params: { path: { agent_name: name } },
          body: { background: true },
        }),
      );
      return (begun as { sessionId: string }).sessionId;
    },
    onSuccess: async (id) => {
      session.current = id;
      setHeard([]);
      await read();
    },
    onError: failed("Could not test the agent"),
  });
  const trial = heard && trialOf(heard);
  return { trial, begin: () => start.mutate(), busy: start.isPending || (trial !== null && !trial.over) };
}
