/** Queries, labels and actions for a sandbox's commands. */
import { infiniteQueryOptions, queryOptions, useMutation, useQueryClient } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { ApiError, api, got, type Schemas } from "@/api/client";
import type { Command } from "@/api/types";
import type { Word } from "@/lib/status";
import { failed } from "@/ui/toast";
import { LogStore } from "./log-store";
import { CommandStream, type StreamState } from "./log-stream";

export const commandPages = (sandboxId: string) =>
  infiniteQueryOptions({
    queryKey: ["commands", sandboxId],
    queryFn: ({ pageParam }) =>
      got(
        api.GET("/api/v1/sandboxes/{sandbox_id}/commands", {
          params: { path: { sandbox_id: sandboxId }, query: { cursor: pageParam, limit: 50 } },
        }),
      ),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.nextCursor ?? undefined,
  });

export const command = (sandboxId: string, id: string) =>
  queryOptions({
    queryKey: ["commands", sandboxId, "one", id],
    queryFn: () => got(api.GET("/api/v1/commands/{command_id}", { params: { path: { command_id: id } } })),
  });

/** The folder of the checkout; null if the sandbox has none. */
export const checkoutFolder = (sandboxId: string) =>
  queryOptions({
    queryKey: ["git", sandboxId, "folder"],
    queryFn: async () => {
      try {
        return (await got(api.GET("/api/v1/git/{sandbox_id}", { params: { path: { sandbox_id: sandboxId } } }))).folder;
      } catch (error) {
        if (error instanceof ApiError && error.status >= 400 && error.status < 500) return null;
        throw error;
      }
    },
  });

export const over = (one: Pick<Command, "status">): boolean => one.status !== "starting" && one.status !== "running";

export function wordOf(one: Command): Word {
  switch (one.status) {
    case "starting": // A short state without an event at its end.
    case "running":
      return { text: "Running", tone: "info", busy: true };
    case "exited":
      return one.exitCode === 0 ? { text: "Exit 0", tone: "ok" } : { text: `Exit ${one.exitCode ?? "?"}`, tone: "bad" };
    case "timed_out":
      return { text: "Timed out", tone: "bad" };
    case "killed":
      return { text: one.signal ? `Killed (signal ${one.signal})` : "Killed", tone: "warn" };
    case "lost":
      return { text: "Exit status unknown", tone: "warn" };
    case "not_started":
      return { text: "Not started", tone: "bad" };
  }
}

export function useExecute(sandboxId: string, onStarted: (id: string) => void) {
  const client = useQueryClient();
  return useMutation({
    mutationFn: async (asked: { command: string; cwd: string | null; timeout: number }) => {
      const body = { ...asked, cwd: asked.cwd || null, background: true };
      const answer = api.POST("/api/v1/sandboxes/{sandbox_id}/execute", {
        params: { path: { sandbox_id: sandboxId } },
        body,
      });
      return (await got(answer)) as unknown as Schemas["CommandView"]; // With `background`, the response is 202 and contains the command.
    },
    onSuccess: (started) => {
      void client.invalidateQueries({ queryKey: ["commands", sandboxId] });
      onStarted(started.id);
    },
    onError: failed("Could not run the command"),
  });
}

export function useKill(sandboxId: string) {
  const client = useQueryClient();
  return useMutation({
    mutationFn: (id: string) =>
      got(api.POST("/api/v1/commands/{command_id}/kill", { params: { path: { command_id: id } } })),
    onSuccess: () => client.invalidateQueries({ queryKey: ["commands", sandboxId] }),
    onError: failed("Could not kill the command"),
  });
}

export interface Log {
  store: LogStore;
  state: StreamState;
  error: unknown;
}

/** Stream a command's output; null until the stream has started. */
export function useLog(one: Command, attempt: number): Log | null {
  const [log, setLog] = useState<Log | null>(null);
  // biome-ignore lint/correctness/useExhaustiveDependencies: only another command or a retry opens a new stream
  useEffect(() => {
    const store = new LogStore();
    const stream = new CommandStream(one, store, (state, error) => setLog({ store, state, error }));
    void stream.start();
    return () => stream.stop();
  }, [one.id, attempt]);
  return log;
}
