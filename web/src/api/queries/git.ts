/** The checkout in a sandbox: its state, its history and the operations on it. */
import { queryOptions, useInfiniteQuery, useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect } from "react";
import { ApiError, api, unwrap } from "../client";
import { keys } from "../keys";
import { defineMutation } from "../mutation";
import type { Checkout, FileDiff, GitStatus, UpdateMethod } from "../types";

const pathOf = (sandboxId: string) => ({ params: { path: { sandbox_id: sandboxId } } });

const readCheckout = (sandboxId: string): Promise<Checkout> =>
  unwrap(api.GET("/api/v1/git/{sandbox_id}", pathOf(sandboxId)));

const checkoutQuery = (sandboxId: string) =>
  queryOptions({ queryKey: keys.checkout(sandboxId), queryFn: () => readCheckout(sandboxId) });

export const useCheckout = (sandboxId: string) => useQuery(checkoutQuery(sandboxId));

/** The folder of the checkout; null if the sandbox has none. */
export const useCheckoutFolder = (sandboxId: string, options: { enabled?: boolean } = {}) =>
  useQuery({
    queryKey: keys.checkoutFolder(sandboxId),
    queryFn: async () => {
      try {
        return (await readCheckout(sandboxId)).folder;
      } catch (error) {
        if (error instanceof ApiError && error.status >= 400 && error.status < 500) return null;
        throw error;
      }
    },
    ...options,
  });

/** Whether the branch has unpushed commits. `status` is the current state in the sandbox, if it is known. */
export function isAhead(checkout: Checkout, status: GitStatus | undefined): boolean {
  const head = status?.head ?? checkout.head;
  return head !== (checkout.pushed ?? checkout.baseCommit);
}

export const useGitStatus = (sandboxId: string, options: { enabled?: boolean } = {}) =>
  useQuery({
    queryKey: keys.gitStatus(sandboxId),
    queryFn: () => unwrap(api.GET("/api/v1/git/{sandbox_id}/status", pathOf(sandboxId))),
    ...options,
  });

const diffQuery = (sandboxId: string, against: string) =>
  queryOptions({ queryKey: keys.diff(sandboxId, against), queryFn: () => readDiff(sandboxId, against) });

/** `against` is `base`, `head` or a commit. */
export const useDiff = (sandboxId: string, against: string, options: { enabled?: boolean } = {}) =>
  useQuery({ ...diffQuery(sandboxId, against), ...options });

function readDiff(sandboxId: string, against: string, path?: string[]) {
  const query = path ? { against, path } : { against };
  return unwrap(api.GET("/api/v1/git/{sandbox_id}/diff", { params: { path: { sandbox_id: sandboxId }, query } }));
}

/** Load the diff of a single file, for which the size limit is higher. The old name is sent too, so that a rename is detected. */
export async function readFileDiff(sandboxId: string, against: string, file: FileDiff): Promise<FileDiff | undefined> {
  const diff = await readDiff(sandboxId, against, [file.path, ...(file.oldPath ? [file.oldPath] : [])]);
  const found = diff.files.find((other) => other.path === file.path);
  if (found?.truncated)
    throw new Error("The changes are too large to show. Open the file itself, or use git in the terminal.");
  return found;
}

/** Fetch the changes while the code of their panel is still loading. */
export function usePrefetchChanges(sandboxId: string | null): void {
  const client = useQueryClient();
  useEffect(() => {
    if (!sandboxId) return;
    void client.prefetchQuery(checkoutQuery(sandboxId));
    void client.prefetchQuery(diffQuery(sandboxId, "base"));
  }, [client, sandboxId]);
}

/** The latest git operations of a sandbox. */
export const useGitOperations = (sandboxId: string, options: { enabled?: boolean } = {}) =>
  useQuery({
    queryKey: keys.gitOperations(sandboxId),
    queryFn: async () =>
      (await unwrap(api.GET("/api/v1/git/operations", { params: { query: { sandboxId, limit: 10 } } }))).items,
    ...options,
  });

const HISTORY_PAGE = 50;

/** The commits of the branch, newest first, loaded page by page. The last page also has the commits of the base branch. */
export const useCommits = (sandboxId: string, options: { enabled: boolean }) =>
  useInfiniteQuery({
    queryKey: keys.history(sandboxId),
    queryFn: ({ pageParam }) => {
      const query = { limit: HISTORY_PAGE, skip: pageParam, base: true };
      return unwrap(api.GET("/api/v1/git/{sandbox_id}/history", { params: { ...pathOf(sandboxId).params, query } }));
    },
    initialPageParam: 0,
    getNextPageParam: (last, pages) => (last.items.length === HISTORY_PAGE ? pages.length * HISTORY_PAGE : undefined),
    ...options,
  });

/** The checkpoints of a session, newest first, loaded page by page. */
export const useCheckpoints = (sessionId: string) =>
  useInfiniteQuery({
    queryKey: keys.checkpoints(sessionId),
    queryFn: ({ pageParam }) =>
      unwrap(
        api.GET("/api/v1/sessions/{session_id}/checkpoints", {
          params: { path: { session_id: sessionId }, query: { limit: HISTORY_PAGE, cursor: pageParam } },
        }),
      ),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (last) => last.nextCursor ?? undefined,
  });

const compare = (projectId: string, base: string, head: string) =>
  unwrap(
    api.GET("/api/v1/projects/{project_id}/compare", {
      params: { path: { project_id: projectId }, query: { base, head } },
    }),
  );

/** Compare two branches of the project's repository. */
export const useComparison = (projectId: string, base: string, head: string, options: { enabled: boolean }) =>
  useQuery({
    queryKey: keys.comparison(projectId, base, head),
    queryFn: () => compare(projectId, base, head),
    ...options,
  });

/** The changes of a pushed commit. */
export const useCommitChanges = (
  commit: { sandboxId: string; projectId: string; id: string; parent: string },
  options: { enabled: boolean },
) =>
  useQuery({
    queryKey: keys.commit(commit.sandboxId, commit.id),
    queryFn: () => compare(commit.projectId, commit.parent, commit.id),
    staleTime: Number.POSITIVE_INFINITY,
    retry: false,
    ...options,
  });

// Each mutation starts an operation and waits for it. If it takes too long, it continues in the background.

export const useCommit = defineMutation({
  request: ({ sandboxId, message }: { sandboxId: string; message: string }) =>
    unwrap(api.POST("/api/v1/git/commit", { body: { sandboxId, message, paths: [], everything: true } })),
  onSuccess: (client, _, { sandboxId }) => client.invalidateQueries({ queryKey: keys.git(sandboxId) }),
});

/** Discard uncommitted changes of these files, or of all. */
export const useDiscardChanges = defineMutation({
  request: ({ sandboxId, paths }: { sandboxId: string; paths?: string[] }) =>
    unwrap(
      api.POST("/api/v1/git/discard", {
        body: paths ? { sandboxId, paths, everything: false } : { sandboxId, paths: [], everything: true },
      }),
    ),
  onSuccess: (client, _, { sandboxId }) => client.invalidateQueries({ queryKey: keys.git(sandboxId) }),
});

export const usePush = defineMutation({
  request: (sandboxId: string) => unwrap(api.POST("/api/v1/git/push", { body: { sandboxId } })),
  onSuccess: (client, _, sandboxId) => client.invalidateQueries({ queryKey: keys.git(sandboxId) }),
});

interface BranchUpdate {
  sandboxId: string;
  how: UpdateMethod;
  /** Update from the base branch, or from commits that others pushed to the branch itself. */
  source: "base" | "branch";
}

export const useUpdateBranch = defineMutation({
  request: (body: BranchUpdate) => unwrap(api.POST("/api/v1/git/update", { body })),
  onSuccess: (client, _, { sandboxId }) => client.invalidateQueries({ queryKey: keys.git(sandboxId) }),
});

export const useSaveCheckpoint = defineMutation({
  request: ({ sandboxId }: { sandboxId: string; sessionId: string }) =>
    unwrap(api.POST("/api/v1/git/checkpoint", { body: { sandboxId } })),
  onSuccess: (client, _, { sessionId }) => client.invalidateQueries({ queryKey: keys.checkpoints(sessionId) }),
});

/** Restore a checkpoint in a new sandbox. `onSuccess` is called when the session was read again. */
export const useRestoreCheckpoint = defineMutation({
  request: async ({ checkpointId, sessionId }: { checkpointId: string; sessionId: string }, client) => {
    const operation = await unwrap(api.POST("/api/v1/git/restore", { body: { checkpointId } }));
    await client.invalidateQueries({ queryKey: keys.session(sessionId) });
    return operation;
  },
});
