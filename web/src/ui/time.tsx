import { useEffect, useState, useSyncExternalStore } from "react";
import { formatAgo, formatDuration } from "@/lib/format";

const waiting = new Set<() => void>();
let now = Date.now();
let timer: ReturnType<typeof setInterval> | undefined;

function subscribe(notify: () => void): () => void {
  waiting.add(notify);
  timer ??= setInterval(() => {
    now = Date.now();
    for (const update of waiting) update();
  }, 1000);
  return () => {
    waiting.delete(notify);
    if (!waiting.size) {
      clearInterval(timer);
      timer = undefined;
    }
  };
}

/** Return the current time, updated every second by one timer for the whole page. */
export function useNow(): number {
  return useSyncExternalStore(subscribe, () => now);
}

export function Ago({ at, className }: { at: string; className?: string }) {
  const [text, setText] = useState(() => formatAgo(at));
  useEffect(() => {
    setText(formatAgo(at));
    const every = setInterval(() => setText(formatAgo(at)), 20_000);
    return () => clearInterval(every);
  }, [at]);
  return (
    <time dateTime={at} title={new Date(at).toLocaleString()} className={className}>
      {text}
    </time>
  );
}

/** The duration of something finished or still running. */
export function Elapsed({ from, to, className }: { from: string; to?: string | null; className?: string }) {
  return to ? (
    <span className={className}>{formatDuration((Date.parse(to) - Date.parse(from)) / 1000)}</span>
  ) : (
    <Running from={from} className={className} />
  );
}

function Running({ from, className }: { from: string; className?: string | undefined }) {
  const at = useNow();
  return <span className={className}>{formatDuration((at - Date.parse(from)) / 1000)}</span>;
}
