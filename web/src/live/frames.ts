/** A stream of the platform's, frame by frame. Silence counts as its end: a dead line is told from a quiet one by the heartbeats. */
import type { EventSourceMessage } from "eventsource-parser";
import { EventSourceParserStream } from "eventsource-parser/stream";
import { raw } from "@/api/client";

const SILENCE_MS = 45_000;

/** Throws ApiError when it is refused, and whatever breaks it. Whoever leaves the loop closes the connection. */
export async function* frames(
  path: string,
  { signal, headers, opened }: { signal: AbortSignal; headers?: Record<string, string>; opened: () => void },
): AsyncGenerator<EventSourceMessage> {
  const broken = new AbortController();
  const stop = () => broken.abort();
  signal.addEventListener("abort", stop);
  let silence = setTimeout(stop, SILENCE_MS);
  try {
    const response = await raw(path, { headers, signal: broken.signal });
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
