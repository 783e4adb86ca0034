/** Read a server-sent event stream. Without data or heartbeats for `SILENCE_MS` the connection counts as dead. */
import type { EventSourceMessage } from "eventsource-parser";
import { EventSourceParserStream } from "eventsource-parser/stream";
import { fetchRaw } from "@/api/client";

const SILENCE_MS = 45_000;

/** Yield the frames of a stream. Throws ApiError if it is refused, or the error that broke it. Leaving the loop closes the connection. */
export async function* readFrames(
  path: string,
  { signal, headers, opened }: { signal: AbortSignal; headers?: Record<string, string>; opened: () => void },
): AsyncGenerator<EventSourceMessage> {
  const broken = new AbortController();
  const stop = () => broken.abort();
  signal.addEventListener("abort", stop);
  let silence = setTimeout(stop, SILENCE_MS);
  try {
    const response = await fetchRaw(path, { headers, signal: broken.signal });
    opened();
    const beats = new TransformStream<Uint8Array<ArrayBuffer>, Uint8Array<ArrayBuffer>>({
      transform(piece, controller) {
        clearTimeout(silence);
        silence = setTimeout(stop, SILENCE_MS);
        controller.enqueue(piece);
      },
    });
    const reader = (response.body as ReadableStream<Uint8Array<ArrayBuffer>>)
      .pipeThrough(beats)
      .pipeThrough(new TextDecoderStream())
      .pipeThrough(new EventSourceParserStream())
      .getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    clearTimeout(silence);
    stop();
    signal.removeEventListener("abort", stop);
  }
}
