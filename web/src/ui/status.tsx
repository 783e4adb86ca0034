import type { StatusLabel } from "@/model/status-labels";
import { Badge, Dot } from "./badge";

/** A status badge: a dot, which pulses while work is in progress, and a word. */
export function Status({ word, title }: { word: StatusLabel; title?: string }) {
  return (
    <Badge tone={word.tone} title={title}>
      <Dot tone={word.tone} pulse={word.busy ?? false} />
      {word.text}
    </Badge>
  );
}
