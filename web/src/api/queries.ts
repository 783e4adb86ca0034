/** Queries shared by several features. The first element of a key is the noun, on which `live/refresh.ts` relies. */
import { keepPreviousData, queryOptions } from "@tanstack/react-query";
import { all, api, got } from "./client";

export const me = queryOptions({
  queryKey: ["me"],
  queryFn: () => got(api.GET("/api/v1/me")),
  staleTime: Number.POSITIVE_INFINITY,
});

export const projects = queryOptions({
  queryKey: ["projects"],
  queryFn: () => all((cursor) => got(api.GET("/api/v1/projects", { params: { query: { cursor, limit: 200 } } }))),
});

export const project = (id: string) =>
  queryOptions({
    queryKey: ["projects", id],
    queryFn: () => got(api.GET("/api/v1/projects/{project_id}", { params: { path: { project_id: id } } })),
  });

/** Model presets. They only change with the platform's version. */
export const presets = queryOptions({
  queryKey: ["model-presets"],
  queryFn: () => got(api.GET("/api/v1/model-presets")),
  staleTime: Number.POSITIVE_INFINITY,
});

export const agents = queryOptions({
  queryKey: ["agents"],
  queryFn: async () => (await got(api.GET("/api/v1/agents"))).items,
});

export const users = queryOptions({
  queryKey: ["users"],
  queryFn: () => all((cursor) => got(api.GET("/api/v1/users", { params: { query: { cursor, limit: 200 } } }))),
});

/** All tasks that the caller may see, of one project or of all. */
export const tasks = (projectId?: string) =>
  queryOptions({
    queryKey: ["tasks", { projectId: projectId ?? null }],
    queryFn: () =>
      all((cursor) => got(api.GET("/api/v1/tasks", { params: { query: { projectId, cursor, limit: 200 } } }))),
  });

/** Number of cards per column and of failed cards, by project. Empty columns are omitted. */
export const counts = queryOptions({
  queryKey: ["counts"],
  queryFn: async () => (await got(api.GET("/api/v1/tasks/counts"))).items,
  select: (items) => new Map(items.map((one) => [one.projectId, one])),
});

/** The first tasks whose title or description matches the search. */
export const searched = (words: string) =>
  queryOptions({
    queryKey: ["searched", words],
    queryFn: async () => {
      const query = { limit: 100, ...(words ? { q: words.slice(0, 200) } : {}) };
      return (await got(api.GET("/api/v1/tasks", { params: { query } }))).items;
    },
    placeholderData: keepPreviousData,
  });

export const task = (id: string) =>
  queryOptions({
    queryKey: ["task", id],
    queryFn: () => got(api.GET("/api/v1/tasks/{task_id}", { params: { path: { task_id: id } } })),
  });

export const session = (id: string) =>
  queryOptions({
    queryKey: ["session", id],
    queryFn: () => got(api.GET("/api/v1/sessions/{session_id}", { params: { path: { session_id: id } } })),
  });

export const sandbox = (id: string) =>
  queryOptions({
    queryKey: ["sandbox", id],
    queryFn: () => got(api.GET("/api/v1/sandboxes/{sandbox_id}", { params: { path: { sandbox_id: id } } })),
  });

/** Pending permission requests and questions, newest first. */
export const pendingAsks = queryOptions({
  queryKey: ["asks", "pending"],
  queryFn: () =>
    all((cursor) => got(api.GET("/api/v1/asks", { params: { query: { status: "pending", cursor, limit: 200 } } }))),
});
