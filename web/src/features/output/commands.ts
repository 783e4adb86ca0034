/** Labels and live output of commands. */
import { useEffect, useState } from "react";
import type { Command } from "@/api/types";
import type { StatusLabel } from "@/model/status-labels";
import { LogStore } from "./log-store";
import { CommandStream, type StreamState } from "./log-stream";

export const isOver = (command: Pick<Command, "status">): boolean =>
  command.status !== "starting" && command.status !== "running";

export function commandStatus(command: Command): StatusLabel {
  switch (command.status) {
    case "starting": // A short state without an event at its end.
    case "running":
      return { text: "Running", tone: "info", busy: true };
    case "exited":
      return command.exitCode === 0
        ? { text: "Exit 0", tone: "ok" }
        : { text: `Exit ${command.exitCode ?? "?"}`, tone: "bad" };
    case "timed_out":
      return { text: "Timed out", tone: "bad" };
    case "killed":
      return { text: command.signal ? `Killed (signal ${command.signal})` : "Killed", tone: "warn" };
    case "lost":
      return { text: "Exit status unknown", tone: "warn" };
    case "not_started":
      return { text: "Not started", tone: "bad" };
  }
}

export interface Log {
  store: LogStore;
  state: StreamState;
  error: unknown;
}

/** Stream a command's output; null until the stream has started. */
export function useLog(command: Command, attempt: number): Log | null {
  const [log, setLog] = useState<Log | null>(null);
  // biome-ignore lint/correctness/useExhaustiveDependencies: only another command or a retry opens a new stream
  useEffect(() => {
    const store = new LogStore();
    const stream = new CommandStream(command, store, (state, error) => setLog({ store, state, error }));
    void stream.start();
    return () => stream.stop();
  }, [command.id, attempt]);
  return log;
}
