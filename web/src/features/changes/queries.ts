/** What is read of a checkout and done to it. */
import { queryOptions } from "@tanstack/react-query";
import { ApiError, api, got, type Schemas } from "@/api/client";
import type { FileDiff } from "@/api/types";

export type Operation = Schemas["OperationView"];
export type Checkout = Schemas["CheckoutView"];
export type GitStatus = Schemas["StatusView"];
/** `how` of an update. */
export type How = Schemas["Update"]["how"];

export const checkout = (sandboxId: string) =>
  queryOptions({
    queryKey: ["git", sandboxId, "checkout"],
    queryFn: () => got(api.GET("/api/v1/git/{sandbox_id}", { params: { path: { sandbox_id: sandboxId } } })),
  });

/** Whether the branch has commits that were not pushed. `status` is of the sandbox now, if it is known. */
export function isAhead(checkout: Checkout, status: GitStatus | undefined): boolean {
  const head = status?.head ?? checkout.head;
  return head !== (checkout.pushed ?? checkout.baseCommit);
}

export const status = (sandboxId: string) =>
  queryOptions({
    queryKey: ["git", sandboxId, "status"],
    queryFn: () => got(api.GET("/api/v1/git/{sandbox_id}/status", { params: { path: { sandbox_id: sandboxId } } })),
  });

/** `against`: base, head, or a commit. */
export const diff = (sandboxId: string, against: string) =>
  queryOptions({
    queryKey: ["git", sandboxId, "diff", against],
    queryFn: () => readDiff(sandboxId, against),
  });

function readDiff(sandboxId: string, against: string, path?: string[]) {
  const query = path ? { against, path } : { against };
  return got(api.GET("/api/v1/git/{sandbox_id}/diff", { params: { path: { sandbox_id: sandboxId }, query } }));
}

/** One file by itself, for which there is more room. Asked with its old name too, else a rename would not be seen as one. */
export async function fileDiff(sandboxId: string, against: string, file: FileDiff): Promise<FileDiff | undefined> {
  const found = await readDiff(sandboxId, against, [file.path, ...(file.oldPath ? [file.oldPath] : [])]);
  const one = found.files.find((other) => other.path === file.path);
  if (one?.truncated)
    throw new Error(
      "Its changes are too large to show, even alone. Look at the file itself, or use git in the terminal.",
    );
  return one;
}

export const operations = (sandboxId: string) =>
  queryOptions({
    queryKey: ["operations", { sandboxId }],
    queryFn: async () =>
      (await got(api.GET("/api/v1/git/operations", { params: { query: { sandboxId, limit: 10 } } }))).items,
  });

/** Each is an operation: it is waited for, and goes on by itself should that take too long. */
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
