import type { StatusLabel } from "@/model/status-labels";
import { Badge, Dot } from "./badge";

/** A status badge: a dot, which pulses while work is in progress, and a status. */
export function Status({ status, title }: { status: StatusLabel; title?: string }) {
  return (
    <Badge tone={status.tone} title={title}>
      <Dot tone={status.tone} pulse={status.busy ?? false} />
      {status.text}
    </Badge>
  );
}
