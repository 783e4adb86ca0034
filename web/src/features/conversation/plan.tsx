import clsx from "clsx";
import { Check, Circle, LoaderCircle } from "lucide-react";
import type { Message } from "@/api/types";
import { Fold } from "./fold";
import { type PlanEntry, planOf } from "./message-parts";

/** `live`: the turn has not ended. */
export function PlanRow({ message, live }: { message: Message; live: boolean }) {
  const entries = planOf(message.parts[0] ?? {});
  return (
    <section aria-label="Plan" className="rounded-md border bg-surface px-3 py-2">
      <h3 className="mb-1 text-xs font-medium text-soft">Plan</h3>
      <Entries entries={entries} live={live} />
    </section>
  );
}

/** The plan of the current turn, pinned above the conversation: one line that expands to the whole plan. */
export function PinnedPlan({ message }: { message: Message }) {
  const entries = planOf(message.parts[0] ?? {});
  const done = entries.filter((planEntry) => planEntry.status === "completed").length;
  const now =
    entries.find((planEntry) => planEntry.status === "in_progress") ??
    entries.find((planEntry) => planEntry.status !== "completed");
  if (!entries.length) return null;
  return (
    <div className="shrink-0 border-b bg-surface px-2 py-0.5 sm:px-3">
      <Fold
        id="pinned-plan"
        head={
          <span className="flex min-w-0 flex-1 items-center gap-2" aria-live="polite">
            <span className="shrink-0 text-xs font-medium text-soft tabular-nums">
              Plan {done}/{entries.length}
            </span>
            <span className="min-w-0 truncate">{now?.content ?? "All done"}</span>
          </span>
        }
        more={() => (
          // biome-ignore lint/a11y/noNoninteractiveTabindex: it scrolls, so the keyboard must reach it
          <section className="max-h-48 overflow-y-auto px-2 pt-1 pb-2" tabIndex={0} aria-label="Full plan">
            <Entries entries={entries} live />
          </section>
        )}
      />
    </div>
  );
}

function Entries({ entries, live }: { entries: PlanEntry[]; live: boolean }) {
  return (
    <ol className="flex flex-col gap-0.5">
      {entries.map((entry, index) => (
        <li key={index} className="flex items-start gap-2 text-[13px]">
          <span className="mt-0.5 grid size-4 shrink-0 place-items-center">
            <Mark status={entry.status} live={live} />
          </span>
          <span className={clsx("min-w-0 break-words", entry.status === "completed" && "text-soft line-through")}>
            {entry.content}
          </span>
        </li>
      ))}
    </ol>
  );
}

function Mark({ status, live }: { status: string; live: boolean }) {
  if (status === "completed") return <Check className="size-3.5 text-ok" role="img" aria-label="Done" />;
  if (status === "in_progress" && live)
    return <LoaderCircle className="size-3.5 animate-spin text-info" role="img" aria-label="In progress" />;
  return <Circle className="size-3 text-faint" role="img" aria-label="To do" />;
}
