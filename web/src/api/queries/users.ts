/** People with an account, and API tokens. */
import { queryOptions, useQuery } from "@tanstack/react-query";
import { api, readAllPages, type Schemas, unwrap } from "../client";
import { keys } from "../keys";
import { defineMutation } from "../mutation";
import { invalidate } from "../refresh";

const usersQuery = queryOptions({
  queryKey: keys.users(),
  queryFn: () =>
    readAllPages((cursor) => unwrap(api.GET("/api/v1/users", { params: { query: { cursor, limit: 200 } } }))),
});

/** Only administrators may list users. */
export const useUsers = (options: { enabled?: boolean; refetchOnMount?: "always"; retry?: false } = {}) =>
  useQuery({ ...usersQuery, ...options });

export const useCreateUser = defineMutation({
  request: (body: Schemas["NewUser"]) => unwrap(api.POST("/api/v1/users", { body })),
  onSuccess: (client, user) => {
    client.setQueryData(
      usersQuery.queryKey,
      (users) => users && [user, ...users.filter((candidate) => candidate.id !== user.id)],
    );
    void client.invalidateQueries({ queryKey: keys.users() });
  },
});

const updateUser = ({ id, ...body }: Schemas["UserChange"] & { id: string }) =>
  unwrap(api.PATCH("/api/v1/users/{user_id}", { params: { path: { user_id: id } }, body }));

export const useUpdateUser = defineMutation({
  request: updateUser,
  onSettled: (client) => client.invalidateQueries({ queryKey: keys.users() }),
});

/** Set or, with null, remove a user's password. */
export const useSetUserPassword = defineMutation({
  request: ({ id, password }: { id: string; password: string | null }) => updateUser({ id, password }),
});

/** Rename the signed-in user. */
export const useRenameMe = defineMutation({
  request: ({ id, name }: { id: string; name: string }) => updateUser({ id, name }),
  onSuccess: (client) => void invalidate(client, keys.me(), keys.users()),
});

export const useTokens = () =>
  useQuery({
    queryKey: keys.tokens(),
    queryFn: () =>
      readAllPages((cursor) => unwrap(api.GET("/api/v1/tokens", { params: { query: { cursor, limit: 200 } } }))),
  });

export const useCreateToken = defineMutation({
  request: (body: Schemas["NewToken"]) => unwrap(api.POST("/api/v1/tokens", { body })),
  onSuccess: (client) => client.invalidateQueries({ queryKey: keys.tokens() }),
});

export const useRevokeToken = defineMutation({
  request: (id: string) => unwrap(api.DELETE("/api/v1/tokens/{token_id}", { params: { path: { token_id: id } } })),
  onSuccess: (client) => client.invalidateQueries({ queryKey: keys.tokens() }),
});
