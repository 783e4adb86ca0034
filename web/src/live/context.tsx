import { useQueryClient } from "@tanstack/react-query";
import { createContext, type ReactNode, useContext, useEffect, useRef, useState } from "react";
import { meQuery } from "@/api/queries/account";
import type { PlatformEvent } from "@/api/types";
import { Feed, type LiveState } from "./feed";
import { Refresher } from "./refresh";

const FeedContext = createContext<Feed | null>(null);

/** Keep cached queries up to date on all signed-in pages, and let components listen to events. */
export function LiveProvider({ children }: { children: ReactNode }) {
  const client = useQueryClient();
  const [feed, setFeed] = useState<Feed | null>(null);
  useEffect(() => {
    const created = new Feed(client.getQueryData(meQuery.queryKey)?.lastEvent ?? 0); // read before all other queries
    const refresher = new Refresher(client);
    created.listen({ event: (event) => refresher.handleEvent(event), reset: () => refresher.reset() });
    created.start();
    setFeed(created);
    return () => created.stop();
  }, [client]);
  return <FeedContext value={feed}>{children}</FeedContext>;
}

/** Call the handler for each event, once and in order. The handler may change between renders. */
export function useEvents(handler: (event: PlatformEvent) => void, reset?: () => void): void {
  const feed = useContext(FeedContext);
  const current = useRef({ handler, reset });
  current.current = { handler, reset };
  useEffect(
    () =>
      feed?.listen({
        event: (event) => current.current.handler(event),
        reset: () => current.current.reset?.(),
      }),
    [feed],
  );
}

export function useLiveState(): LiveState {
  const feed = useContext(FeedContext);
  const [state, setState] = useState<LiveState>(feed?.state ?? "connecting");
  useEffect(() => {
    if (!feed) return;
    setState(feed.state);
    return feed.listen({ state: setState });
  }, [feed]);
  return state;
}
