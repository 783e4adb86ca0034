/** The column that a board shows first on a screen that fits only one. Pure. */

import { COLUMN_ORDER } from "@/api/card-order";
import type { Column, TaskCard } from "@/api/types";
import { hasFailed, needsPerson } from "@/model/task-facts";

/** Return the first column that needs a user (answer, retry or review), else the one with work in progress, else the first with cards. */
export function firstColumn(cards: readonly TaskCard[], asked: ReadonlySet<string>): Column | undefined {
  const wants = (task: TaskCard) => task.status === "in_review" || hasFailed(task) || needsPerson(task, asked);
  const first = (fits: (task: TaskCard) => boolean) =>
    COLUMN_ORDER.find((column) => cards.some((task) => task.status === column && fits(task)));
  return first((task) => task.status !== "cancelled" && wants(task)) ?? first(isInProgress) ?? first(() => true);
}

const isInProgress = (task: TaskCard) => task.status === "in_progress";
