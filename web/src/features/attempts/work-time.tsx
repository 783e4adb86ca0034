import type { Attempt } from "@/api/types";
import { formatPreciseDuration } from "@/lib/format";
import { Elapsed } from "@/ui/time";

/** How long an attempt has worked, without the time between its rounds. The only duration shown for an attempt. */
export function WorkTime({
  attempt,
  className,
}: {
  attempt: Pick<Attempt, "seconds" | "workingSince">;
  className?: string;
}) {
  if (attempt.workingSince) return <Elapsed from={attempt.workingSince} {...(className && { className })} />;
  return <span className={className}>{formatPreciseDuration(attempt.seconds ?? 0)}</span>;
}
