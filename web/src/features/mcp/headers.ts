/** Headers of an MCP server as they are edited: values that are stored are not known here. */
import type { Schemas } from "@/api/client";

export interface Header {
  key: number;
  name: string;
  /** As it is typed; empty: the stored one. */
  value: string;
}

type Server = Pick<Schemas["McpServerView"], "headers">;

export function writtenHeaders(server: Server | undefined): Header[] {
  return (server?.headers ?? []).map((one, index) => ({ key: index, name: one.name, value: "" }));
}

/** As the API takes them: null keeps the value that is stored. A row without a name is none. */
export function headersOf(headers: Header[]): Record<string, string | null> {
  const named = headers.filter((one) => one.name.trim());
  return Object.fromEntries(named.map((one) => [one.name.trim(), one.value.trim() || null]));
}

/** The hint of the value that is stored under this name; null: there is none, and one must be typed. */
export function hintOf(name: string, server: Server | undefined): string | null {
  return server?.headers.find((one) => isSame(one.name, name))?.hint ?? null;
}

/** The first header whose name another one before it has already. */
export function duplicateOf(headers: Header[]): string | null {
  const found = headers.find(
    (one, index) => one.name.trim() && headers.slice(0, index).some((before) => isSame(before.name, one.name)),
  );
  return found?.name.trim() ?? null;
}

/** Whether they differ from those that are stored. */
export function isChanged(headers: Header[], server: Server): boolean {
  const names = Object.keys(headersOf(headers)).join("\n");
  return names !== server.headers.map((one) => one.name).join("\n") || headers.some((one) => one.value.trim() !== "");
}

function isSame(one: string, other: string): boolean {
  return one.trim().toLowerCase() === other.trim().toLowerCase();
}
