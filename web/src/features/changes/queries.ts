/** Queries and operations on a checkout. */
import { queryOptions } from "@tanstack/react-query";
import { ApiError, api, got, type Schemas } from "@/api/client";
import type { FileDiff } from "@/api/types";

export type Operation = Schemas["OperationView"];
export type Checkout = Schemas["CheckoutView"];
export type GitStatus = Schemas["StatusView"];
/** The `how` of an update. */
export type How = Schemas["Update"]["how"];

export const checkout = (sandboxId: string) =>
  queryOptions({
    queryKey: ["git", sandboxId, "checkout"],
    queryFn: () => got(api.GET("/api/v1/git/{sandbox_id}", { params: { path: { sandbox_id: sandboxId } } })),
  });

/** Whether the branch has unpushed commits. `status` is the current state in the sandbox, if it is known. */
export function isAhead(checkout: Checkout, status: GitStatus | undefined): boolean {
  const head = status?.head ?? checkout.head;
  return head !== (checkout.pushed ?? checkout.baseCommit);
}

export const status = (sandboxId: string) =>
  queryOptions({
    queryKey: ["git", sandboxId, "status"],
    queryFn: () => got(api.GET("/api/v1/git/{sandbox_id}/status", { params: { path: { sandbox_id: sandboxId } } })),
  });

/** `against` is `base`, `head` or a commit. */
export const diff = (sandboxId: string, against: string) =>
  queryOptions({
    queryKey: ["git", sandboxId, "diff", against],
    queryFn: () => readDiff(sandboxId, against),
  });

function readDiff(sandboxId: string, against: string, path?: string[]) {
  const query = path ? { against, path } : { against };
  return got(api.GET("/api/v1/git/{sandbox_id}/diff", { params: { path: { sandbox_id: sandboxId }, query } }));
}

/** Load the diff of a single file, for which the size limit is higher. The old name is sent too, so that a rename is detected. */
export async function fileDiff(sandboxId: string, against: string, file: FileDiff): Promise<FileDiff | undefined> {
  const found = await readDiff(sandboxId, against, [file.path, ...(file.oldPath ? [file.oldPath] : [])]);
  const one = found.files.find((other) => other.path === file.path);
  if (one?.truncated)
    throw new Error("The changes are too large to show. Open the file itself, or use git in the terminal.");
  return one;
}

export const operations = (sandboxId: string) =>
  queryOptions({
    queryKey: ["operations", { sandboxId }],
    queryFn: async () =>
      (await got(api.GET("/api/v1/git/operations", { params: { query: { sandboxId, limit: 10 } } }))).items,
  });

/** Start an operation and wait for it. If it takes too long, it continues in the background. */
export const git = {
  commit: (sandboxId: string, message: string) =>
    got(api.POST("/api/v1/git/commit", { body: { sandboxId, message, paths: [], everything: true } })),
  discard: (sandboxId: string, paths?: string[]) =>
    got(
      api.POST("/api/v1/git/discard", {
        body: paths ? { sandboxId, paths, everything: false } : { sandboxId, paths: [], everything: true },
      }),
    ),
  push: (sandboxId: string) => got(api.POST("/api/v1/git/push", { body: { sandboxId } })),
  update: (sandboxId: string, how: How, source: "base" | "branch" = "base") =>
    got(api.POST("/api/v1/git/update", { body: { sandboxId, how, source } })),
  checkpoint: (sandboxId: string) => got(api.POST("/api/v1/git/checkpoint", { body: { sandboxId } })),
  restore: (checkpointId: string) => got(api.POST("/api/v1/git/restore", { body: { checkpointId } })),
};

export function isCode(error: unknown, code: string): error is ApiError {
  return error instanceof ApiError && error.code === code;
}
