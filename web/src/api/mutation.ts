/** Mutation hooks: a request to the platform together with the changes of the cache that follow from it. */
import { type QueryClient, type UseMutationOptions, useMutation } from "@tanstack/react-query";

type Options<Result, Variables> = UseMutationOptions<Result, Error, Variables>;

interface MutationDefinition<Result, Variables> extends Pick<Options<Result, Variables>, "retry" | "retryDelay"> {
  request: (variables: Variables, client: QueryClient) => Promise<Result>;
  /** Update the cache after a success. A returned promise keeps the mutation pending. */
  onSuccess?: (client: QueryClient, result: Result, variables: Variables) => unknown;
  /** Update the cache after a success or a failure. A returned promise keeps the mutation pending. */
  onSettled?: (client: QueryClient, variables: Variables) => unknown;
}

/** What a component does after a mutation, such as showing a message. Called even if the component is no longer mounted. */
export interface MutationCallbacks<Result, Variables> extends Pick<Options<Result, Variables>, "retry"> {
  onSuccess?: (result: Result, variables: Variables) => unknown;
  onError?: (error: Error, variables: Variables) => unknown;
  onSettled?: (variables: Variables) => unknown;
}

/** Combine the cache updates of a mutation with a component's callbacks. The updates start before the callbacks are called. */
export function combineOptions<Result, Variables>(
  { request, onSuccess, onSettled, ...retries }: MutationDefinition<Result, Variables>,
  callbacks: MutationCallbacks<Result, Variables>,
): Options<Result, Variables> {
  return {
    ...retries,
    ...(callbacks.retry !== undefined && { retry: callbacks.retry }),
    mutationFn: (variables, { client }) => request(variables, client),
    onSuccess: (result, variables, _, { client }) =>
      Promise.all([onSuccess?.(client, result, variables), callbacks.onSuccess?.(result, variables)]),
    onError: (error, variables) => callbacks.onError?.(error, variables),
    onSettled: (_, __, variables, ___, { client }) =>
      Promise.all([onSettled?.(client, variables), callbacks.onSettled?.(variables)]),
  };
}

/** Return a hook for the mutation. */
export function defineMutation<Result, Variables = void>(definition: MutationDefinition<Result, Variables>) {
  return function useDefinedMutation(callbacks: MutationCallbacks<Result, Variables> = {}) {
    return useMutation(combineOptions(definition, callbacks));
  };
}
