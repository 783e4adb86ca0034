/** Model providers and the presets for them. */
import { queryOptions, useQuery } from "@tanstack/react-query";
import { api, readAllPages, type Schemas, unwrap } from "../client";
import { keys } from "../keys";
import { defineMutation } from "../mutation";
import { invalidate } from "../refresh";

const presetsQuery = queryOptions({
  queryKey: keys.modelPresets(),
  queryFn: () => unwrap(api.GET("/api/v1/model-presets")),
  staleTime: Number.POSITIVE_INFINITY,
});

/** Model presets. They only change with the platform's version. */
export const useModelPresets = (options: { enabled?: boolean } = {}) => useQuery({ ...presetsQuery, ...options });

/** Shared providers and, with a project, its own. */
export const useModelProviders = (projectId: string | undefined, options: { enabled?: boolean } = {}) =>
  useQuery({
    queryKey: keys.modelProviders(projectId),
    queryFn: () =>
      readAllPages((cursor) =>
        unwrap(api.GET("/api/v1/model-providers", { params: { query: { projectId, cursor, limit: 200 } } })),
      ),
    ...options,
  });

const createProvider = (body: Schemas["NewModelProvider"]) => unwrap(api.POST("/api/v1/model-providers", { body }));

/** Add a provider with its key. Stays pending until the agents have been refetched, because the key makes some of them ready. */
export const useAddModelKey = defineMutation({
  request: async (body: Schemas["NewModelProvider"], client) => {
    const provider = await createProvider(body);
    await invalidate(client, keys.agents(), keys.allModelProviders(), keys.projects());
    return provider;
  },
});

type ProviderDraft =
  | { id: string; body: Schemas["ModelProviderChange"] }
  | { id?: undefined; body: Schemas["NewModelProvider"] };

export const useSaveModelProvider = defineMutation({
  request: (draft: ProviderDraft) =>
    draft.id === undefined
      ? createProvider(draft.body)
      : unwrap(
          api.PATCH("/api/v1/model-providers/{provider_id}", {
            params: { path: { provider_id: draft.id } },
            body: draft.body,
          }),
        ),
  onSuccess: (client) => void invalidate(client, keys.allModelProviders(), keys.agents()),
});

const providerPath = (id: string) => ({ params: { path: { provider_id: id } } });

export const useTestModelProvider = defineMutation({
  request: (id: string) => unwrap(api.POST("/api/v1/model-providers/{provider_id}/test", providerPath(id))),
});

export const useDeleteModelProvider = defineMutation({
  request: (id: string) => unwrap(api.DELETE("/api/v1/model-providers/{provider_id}", providerPath(id))),
  onSuccess: (client) => client.invalidateQueries({ queryKey: keys.allModelProviders() }),
});
