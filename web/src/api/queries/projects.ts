/** Projects with their members, credentials and preparations. */
import { type QueryClient, queryOptions, useMutation, useQuery } from "@tanstack/react-query";
import { api, readAllPages, type Schemas, unwrap } from "../client";
import { keys } from "../keys";
import { defineMutation, type MutationCallbacks } from "../mutation";
import { invalidate } from "../refresh";
import type { Project } from "../types";

const projectPath = (projectId: string) => ({ params: { path: { project_id: projectId } } });

export const projectsQuery = queryOptions({
  queryKey: keys.projects(),
  queryFn: () =>
    readAllPages((cursor) => unwrap(api.GET("/api/v1/projects", { params: { query: { cursor, limit: 200 } } }))),
});

const projectQuery = (id: string) => queryOptions({ queryKey: keys.project(id), queryFn: () => readProject(id) });

const readProject = (id: string): Promise<Project> => unwrap(api.GET("/api/v1/projects/{project_id}", projectPath(id)));

/** All projects of the caller that are not archived. */
export const useProjects = () => useQuery(projectsQuery);

export const useProject = (id: string, options: { enabled?: boolean } = {}) =>
  useQuery({ ...projectQuery(id), ...options });

export const useArchivedProjects = (options: { enabled?: boolean } = {}) =>
  useQuery({
    queryKey: keys.archivedProjects(),
    queryFn: () =>
      readAllPages((cursor) =>
        unwrap(api.GET("/api/v1/projects", { params: { query: { archived: true, cursor, limit: 200 } } })),
      ),
    ...options,
  });

export const useCreateProject = defineMutation({
  request: (body: Schemas["NewProject"]) => unwrap(api.POST("/api/v1/projects", { body })),
  onSuccess: (client) => void client.invalidateQueries({ queryKey: keys.projects() }),
});

/** Create the sample project, a small repository with tasks. Idempotent: later calls return the same project. */
export const useCreateSampleProject = defineMutation({
  request: () => unwrap(api.POST("/api/v1/projects/sample")),
  onSuccess: (client) => void client.invalidateQueries({ queryKey: keys.projects() }),
});

/** Store a project that a response contained, so that pages show it without reading it again. */
function cacheProject(client: QueryClient, project: Project): void {
  client.setQueryData(projectQuery(project.id).queryKey, project);
}

export const useArchiveProject = defineMutation({
  request: ({ id, archived }: { id: string; archived: boolean }) =>
    unwrap(api.PATCH("/api/v1/projects/{project_id}", { ...projectPath(id), body: { archived } })),
  onSuccess: (client, project) => {
    cacheProject(client, project);
    void client.invalidateQueries({ queryKey: keys.projects() });
  },
});

interface ProjectUpdate {
  id: string;
  /** Test the connection to the forge first; nothing is saved if the test fails. */
  test?: boolean;
  /** Compute the changes from the project as it is stored now, so that concurrent changes of others are kept. */
  changes: (stored: Project) => Schemas["ProjectChange"];
}

export const useUpdateProject = defineMutation({
  request: async ({ id, test, changes }: ProjectUpdate) => {
    const body = changes(await readProject(id));
    const query = test === undefined ? {} : { query: { test } };
    return unwrap(
      api.PATCH("/api/v1/projects/{project_id}", { params: { ...projectPath(id).params, ...query }, body }),
    );
  },
  onSuccess: (client, project) => {
    cacheProject(client, project);
    void client.invalidateQueries({ queryKey: keys.projects() });
  },
});

/** Delete a project. `leave` is called before the cache is updated: the page of a deleted project would show an error. */
export function useDeleteProject({
  leave,
  onSuccess,
  onError,
}: { leave: () => Promise<unknown> } & MutationCallbacks<unknown, string>) {
  return useMutation({
    mutationFn: (id: string) => unwrap(api.DELETE("/api/v1/projects/{project_id}", projectPath(id))),
    onSuccess: async (result, id, _, { client }) => {
      await leave();
      void invalidate(client, keys.projects(), keys.allTasks(), keys.boards(), keys.taskCounts());
      await onSuccess?.(result, id);
    },
    onError: (error, id) => onError?.(error, id),
  });
}

/** Test the repository and its forge without changing anything. */
export const useTestConnection = defineMutation({
  request: (projectId: string) => unwrap(api.POST("/api/v1/projects/{project_id}/test", projectPath(projectId))),
});

export const useMembers = (projectId: string, options: { enabled?: boolean } = {}) =>
  useQuery({
    queryKey: keys.members(projectId),
    queryFn: async () => (await unwrap(api.GET("/api/v1/projects/{project_id}/members", projectPath(projectId)))).items,
    ...options,
  });

interface Member {
  projectId: string;
  userId: string;
}
const memberPath = ({ projectId, userId }: Member) => ({
  params: { path: { project_id: projectId, user_id: userId } },
});

export const useAddMember = defineMutation({
  request: (member: Member) => unwrap(api.PUT("/api/v1/projects/{project_id}/members/{user_id}", memberPath(member))),
  onSuccess: (client, _, { projectId }) => client.invalidateQueries({ queryKey: keys.members(projectId) }),
});

export const useRemoveMember = defineMutation({
  request: (member: Member) =>
    unwrap(api.DELETE("/api/v1/projects/{project_id}/members/{user_id}", memberPath(member))),
  onSuccess: (client, _, { projectId }) => client.invalidateQueries({ queryKey: keys.members(projectId) }),
});

export const useCredentials = (projectId: string) =>
  useQuery({
    queryKey: keys.credentials(projectId),
    queryFn: async () =>
      (await unwrap(api.GET("/api/v1/projects/{project_id}/credentials", projectPath(projectId)))).items,
  });

export const useSaveCredentials = defineMutation({
  request: ({ projectId, test, body }: { projectId: string; test: boolean; body: Schemas["CredentialChanges"] }) =>
    unwrap(
      api.PUT("/api/v1/projects/{project_id}/credentials", {
        params: { path: { project_id: projectId }, query: { test } },
        body,
      }),
    ),
  onSuccess: (client, _, { projectId }) => void invalidate(client, keys.credentials(projectId), keys.projects()),
});

export const useRemoveCredential = defineMutation({
  request: ({ projectId, kind }: { projectId: string; kind: Schemas["CredentialView"]["kind"] }) =>
    unwrap(
      api.DELETE("/api/v1/projects/{project_id}/credentials/{kind}", {
        params: { path: { project_id: projectId, kind } },
      }),
    ),
  onSuccess: (client, _, { projectId }) => client.invalidateQueries({ queryKey: keys.credentials(projectId) }),
});

/** The latest preparations of a project, newest first. */
export const usePreparations = (projectId: string) =>
  useQuery({
    queryKey: keys.preparations(projectId),
    queryFn: async () => {
      const params = { path: { project_id: projectId }, query: { limit: 20 } };
      return (await unwrap(api.GET("/api/v1/projects/{project_id}/preparations", { params }))).items;
    },
  });

export const useStartPreparation = defineMutation({
  request: (projectId: string) =>
    unwrap(api.POST("/api/v1/projects/{project_id}/preparations", { ...projectPath(projectId), body: {} })),
  onSuccess: (client, _, projectId) => client.invalidateQueries({ queryKey: keys.preparations(projectId) }),
});

export const useDeletePreparation = defineMutation({
  request: ({ id }: { id: string; projectId: string }) =>
    unwrap(api.DELETE("/api/v1/preparations/{preparation_id}", { params: { path: { preparation_id: id } } })),
  onSuccess: (client, _, { projectId }) => client.invalidateQueries({ queryKey: keys.preparations(projectId) }),
});
