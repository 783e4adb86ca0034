/** The platform itself: usage, audit log, health, documentation. */
import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { saveUrl } from "@/lib/save-file";
import { api, unwrap } from "../client";
import { keys } from "../keys";
import { defineMutation } from "../mutation";
import { addTicket } from "./tickets";

/** Model usage by day since a day in UTC, such as `2026-01-31`. */
export const useUsageDays = (since: string, projectId?: string, options: { enabled?: boolean } = {}) =>
  useQuery({
    queryKey: keys.usageDays(since, projectId),
    queryFn: () =>
      unwrap(api.GET("/api/v1/usage/days", { params: { query: { since: `${since}T00:00:00Z`, projectId } } })),
    ...options,
  });

export interface AuditFilters {
  userId: string | undefined;
  action: string | undefined;
  target: string | undefined;
}

/** Pages of the audit log, newest entries first. */
export const useAuditLog = (filters: AuditFilters) =>
  useInfiniteQuery({
    queryKey: keys.audit(filters),
    queryFn: ({ pageParam }) =>
      unwrap(api.GET("/api/v1/audit", { params: { query: { ...filters, limit: 100, cursor: pageParam } } })),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (last) => last.nextCursor ?? undefined,
  });

/** Download all entries that match the filters, streamed by the platform. */
export const useExportAuditLog = defineMutation({
  request: async (filters: AuditFilters) => {
    const set = Object.entries(filters).filter((pair): pair is [string, string] => Boolean(pair[1]));
    saveUrl(await addTicket(`/api/v1/audit/export?${new URLSearchParams(set)}`), "audit.ndjson");
  },
});

export const useHealth = () =>
  useQuery({ queryKey: keys.health(), queryFn: () => unwrap(api.GET("/health")), staleTime: 0 });

/** The state of the installation, for administrators. */
export const useInstanceStatus = () =>
  useQuery({
    queryKey: keys.status(),
    queryFn: () => unwrap(api.GET("/api/v1/status")),
    staleTime: 0,
    refetchInterval: 5000,
  });

/** What takes the disks, for administrators. Measuring may take a minute, so it is not repeated by itself. */
export const useDisk = () =>
  useQuery({
    queryKey: keys.disk(),
    queryFn: () => unwrap(api.GET("/api/v1/disk")),
    staleTime: 60_000,
    refetchOnWindowFocus: false,
  });

/** Remove what the retention rules allow. The result says what was removed. */
export const useFreeDisk = defineMutation({
  request: () => unwrap(api.POST("/api/v1/disk/free")),
  onSettled: (client) => {
    client.invalidateQueries({ queryKey: keys.disk() });
    return client.invalidateQueries({ queryKey: keys.status() });
  },
});

const DOCUMENTS = import.meta.glob<string>(
  ["../../../../README.md", "../../../../docs/*.md", "../../../../docs/reference/*.md"],
  { query: "?raw", import: "default" },
);

/** A document of the installed version, bundled with the platform. */
export const useHelpDocument = (id: string) =>
  useQuery({
    queryKey: keys.helpDocument(id),
    queryFn: async () => {
      const load = DOCUMENTS[`../../../../${id === "README" ? "" : "docs/"}${id}.md`];
      return load ? load() : "";
    },
    staleTime: Number.POSITIVE_INFINITY,
  });
