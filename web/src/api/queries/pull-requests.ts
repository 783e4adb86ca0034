/**
 * Pull requests, and pushed branches on remotes without them. Both can be merged and refreshed by id; the other actions exist only for pull
 * requests and use their number on the forge.
 */
import { useQuery } from "@tanstack/react-query";
import { api, hasCode, type Schemas, unwrap } from "../client";
import { keys } from "../keys";
import { defineMutation } from "../mutation";
import { invalidate } from "../refresh";
import type { MergeMethod, PullRequest } from "../types";

/** The pull request of a session. Each attempt of a task has its own. `taskId` is only part of the cache key: events name the task. */
export const usePullRequest = (sessionId: string, taskId: string | undefined) =>
  useQuery({
    queryKey: keys.pullRequest(sessionId, taskId),
    queryFn: () =>
      unwrap(api.GET("/api/v1/sessions/{session_id}/pull-request", { params: { path: { session_id: sessionId } } })),
    retry: (failures, error) => failures < 2 && !hasCode(error, "not_found"),
  });

const openPullRequest = (body: Schemas["NewPullRequest"]) => unwrap(api.POST("/api/v1/github/pull-requests", { body }));

/** Push the branch, and open a pull request or update the open one. */
export const useOpenPullRequest = defineMutation({
  request: openPullRequest,
  onSuccess: (client, _, { sandboxId }) => {
    void client.invalidateQueries({ queryKey: keys.git(sandboxId) });
    return client.invalidateQueries({ queryKey: keys.pullRequests() });
  },
});

/** A new pull request without labels and people of its own: the project's settings apply. */
export const NO_DETAILS = { labels: [], reviewers: [], assignees: [] };

interface Merge {
  id: string;
  method: MergeMethod;
  /** The reviewed commit. If the branch has moved since, nothing is merged. */
  headCommit?: string | null;
  /** The task that is done when its work is merged. */
  taskId?: string;
}

export const useMergePullRequest = defineMutation({
  request: ({ id, method, headCommit }: Merge) =>
    unwrap(
      api.POST("/api/v1/pull-requests/{pull_request_id}/merge", {
        params: { path: { pull_request_id: id } },
        body: { method, ...(headCommit !== undefined && { headCommit }) },
      }),
    ),
  onSuccess: (client, _, { taskId }) => invalidate(client, keys.pullRequests(), ...(taskId ? [keys.task(taskId)] : [])),
});

/** Ask the remote for the current state. */
export const useRefreshPullRequest = defineMutation({
  request: (id: string) =>
    unwrap(api.POST("/api/v1/pull-requests/{pull_request_id}/refresh", { params: { path: { pull_request_id: id } } })),
  onSuccess: (client) => client.invalidateQueries({ queryKey: keys.pullRequests() }),
});

export type PullRequestAction = "merge" | "ready" | "close" | "refresh" | "update";

interface ActionRequest {
  action: PullRequestAction;
  pull: PullRequest;
  sandboxId: string;
  /** Only for `merge`. */
  method?: MergeMethod;
}

function sendAction({ action, pull, sandboxId, method }: ActionRequest): Promise<PullRequest> {
  const params = { path: { number: pull.number ?? 0 } };
  const body = { projectId: pull.projectId };
  switch (action) {
    case "merge":
      return unwrap(
        api.POST("/api/v1/github/pull-requests/{number}/merge", {
          params,
          body: { ...body, method, headCommit: pull.headCommit },
        }),
      );
    case "ready":
      return unwrap(api.POST("/api/v1/github/pull-requests/{number}/ready", { params, body }));
    case "close":
      return unwrap(api.POST("/api/v1/github/pull-requests/{number}/close", { params, body }));
    case "refresh":
      return unwrap(api.POST("/api/v1/github/pull-requests/{number}/refresh", { params, body }));
    case "update":
      return openPullRequest({ sandboxId, ...NO_DETAILS });
  }
}

/** Apply an action to a pull request on the forge. */
export const useApplyPullRequestAction = defineMutation({
  request: sendAction,
  onSuccess: (client, _, { action, sandboxId }) => {
    if (action === "update") void client.invalidateQueries({ queryKey: keys.git(sandboxId) });
    return client.invalidateQueries({ queryKey: keys.pullRequests() });
  },
});
