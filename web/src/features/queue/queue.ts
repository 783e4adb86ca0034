import { queryOptions } from "@tanstack/react-query";
import { api, got } from "@/api/client";

/** The queued attempts, in order. */
export const queue = queryOptions({
  queryKey: ["queue"],
  queryFn: async () => (await got(api.GET("/api/v1/queue"))).items,
});
