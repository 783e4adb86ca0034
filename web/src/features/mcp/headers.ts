/** Edited headers of an MCP server. Stored values are not known here. */
import type { Schemas } from "@/api/client";

export interface Header {
  key: number;
  name: string;
  /** As typed; empty keeps the stored value. */
  value: string;
}

type Server = Pick<Schemas["McpServerView"], "headers">;

export function headerRows(server: Server | undefined): Header[] {
  return (server?.headers ?? []).map((header, index) => ({ key: index, name: header.name, value: "" }));
}

/** Convert to the API's format: null keeps the stored value. Rows without a name are ignored. */
export function headersOf(headers: Header[]): Record<string, string | null> {
  const named = headers.filter((header) => header.name.trim());
  return Object.fromEntries(named.map((header) => [header.name.trim(), header.value.trim() || null]));
}

/** Return the hint of the value stored under this name; null if there is none and a value must be typed. */
export function hintOf(name: string, server: Server | undefined): string | null {
  return server?.headers.find((header) => isSame(header.name, name))?.hint ?? null;
}

/** Return the name of the first duplicate header, or null. */
export function duplicateOf(headers: Header[]): string | null {
  const found = headers.find(
    (header, index) => header.name.trim() && headers.slice(0, index).some((before) => isSame(before.name, header.name)),
  );
  return found?.name.trim() ?? null;
}

/** Return whether the headers differ from the stored ones. */
export function isChanged(headers: Header[], server: Server): boolean {
  const names = Object.keys(headersOf(headers)).join("\n");
  return (
    names !== server.headers.map((header) => header.name).join("\n") ||
    headers.some((header) => header.value.trim() !== "")
  );
}

function isSame(one: string, other: string): boolean {
  return one.trim().toLowerCase() === other.trim().toLowerCase();
}
