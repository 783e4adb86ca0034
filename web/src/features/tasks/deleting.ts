import { ApiError } from "@/api/client";

const TRIES = 60;

/** Retry options for deleting a task: the platform answers `conflict` until its running attempts have stopped. */
export const whenStopped = {
  retry: (count: number, error: Error): boolean =>
    count < TRIES && error instanceof ApiError && error.code === "conflict",
  retryDelay: 500,
};
