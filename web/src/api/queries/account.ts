/** The signed-in user. */
import { queryOptions, useQuery, useQueryClient } from "@tanstack/react-query";
import { useCallback } from "react";
import { ApiError, api, type Schemas, unwrap } from "../client";
import { keys } from "../keys";
import { setLoginKey } from "../login-key";
import { defineMutation } from "../mutation";

export const meQuery = queryOptions({
  queryKey: keys.me(),
  queryFn: () => unwrap(api.GET("/api/v1/me")),
  staleTime: Number.POSITIVE_INFINITY,
});

export const useMe = () => useQuery(meQuery);

/** The signed-in user; undefined while loading. */
export const useCurrentUser = () => useMe().data?.user;

export const useIsAdmin = (): boolean => useCurrentUser()?.role === "admin";

/** Return a function that reads the signed-in user. It throws ApiError if nobody is signed in. */
export function useReadMe(): () => Promise<Schemas["Me"]> {
  const client = useQueryClient();
  return useCallback(() => client.fetchQuery(meQuery), [client]);
}

const NO_COOKIE =
  "Signing in worked, but your browser does not send the cookie. Allow cookies for this address, or delete the ones it has, and try again.";

type Credentials = { token: string } | { name: string; password: string };

/** Sign in, forget everything that was cached for another user, and read the new user. `onSuccess` is called after that. */
export const useSignIn = defineMutation({
  request: async (credentials: Credentials, client) => {
    const { key } = await unwrap(api.POST("/api/v1/login", { body: credentials }));
    setLoginKey(key);
    client.clear();
    try {
      await client.fetchQuery(meQuery);
    } catch (error) {
      throw error instanceof ApiError && error.status === 401 ? new Error(NO_COOKIE) : error;
    }
  },
});

export const useSignOut = defineMutation({
  request: () => unwrap(api.POST("/api/v1/logout")),
  onSuccess: (client) => {
    setLoginKey(null);
    client.clear();
  },
});

export const useChangePassword = defineMutation({
  request: (body: Schemas["PasswordChange"]) => unwrap(api.PUT("/api/v1/me/password", { body })),
  onSuccess: (client) => void client.invalidateQueries({ queryKey: keys.me() }),
});
