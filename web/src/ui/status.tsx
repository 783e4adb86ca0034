import type { Word } from "@/lib/status";
import { Badge, Dot } from "./badge";

/** A state as a badge: a dot that moves while something does, and its word. */
export function Status({ word, title }: { word: Word; title?: string }) {
  return (
    <Badge tone={word.tone} title={title}>
      <Dot tone={word.tone} pulse={word.busy ?? false} />
      {word.text}
    </Badge>
  );
}
