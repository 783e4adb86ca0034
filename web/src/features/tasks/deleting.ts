import { ApiError } from "@/api/client";

const TRIES = 60;

/** For a mutation that deletes a task: what works on it is stopped first, and until that is through the platform says "conflict". */
export const whenStopped = {
  retry: (count: number, error: Error): boolean =>
    count < TRIES && error instanceof ApiError && error.code === "conflict",
  retryDelay: 500,
};
