/** Where a board opens on a screen that shows one column. Pure. */
import type { Column, TaskCard } from "@/api/types";
import { hasFailed, needsPerson } from "@/features/tasks/card-facts";
import { ORDER } from "./order";

/** Where a person is needed: an answer, a retry or a review is wanted. Else where work goes on, else where anything is. */
export function firstColumn(cards: readonly TaskCard[], asked: ReadonlySet<string>): Column | undefined {
  const wants = (task: TaskCard) => task.status === "in_review" || hasFailed(task) || needsPerson(task, asked);
  const first = (fits: (task: TaskCard) => boolean) =>
    ORDER.find((column) => cards.some((task) => task.status === column && fits(task)));
  return first((task) => task.status !== "cancelled" && wants(task)) ?? first(isInProgress) ?? first(() => true);
}

const isInProgress = (task: TaskCard) => task.status === "in_progress";
