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
  return (server?.headers ?? []).map((one, index) => ({ key: index, name: one.name, value: "" }));
}

/** Convert to the API's format: null keeps the stored value. Rows without a name are ignored. */
export function headersOf(headers: Header[]): Record<string, string | null> {
  const named = headers.filter((one) => one.name.trim());
  return Object.fromEntries(named.map((one) => [one.name.trim(), one.value.trim() || null]));
}

/** Return the hint of the value stored under this name; null if there is none and a value must be typed. */
export function hintOf(name: string, server: Server | undefined): string | null {
  return server?.headers.find((one) => isSame(one.name, name))?.hint ?? null;
}

/** Return the name of the first duplicate header, or null. */
export function duplicateOf(headers: Header[]): string | null {
  const found = headers.find(
    (one, index) => one.name.trim() && headers.slice(0, index).some((before) => isSame(before.name, one.name)),
  );
  return found?.name.trim() ?? null;
}

/** Return whether the headers differ from the stored ones. */
export function isChanged(headers: Header[], server: Server): boolean {
  const names = Object.keys(headersOf(headers)).join("\n");
  return names !== server.headers.map((one) => one.name).join("\n") || headers.some((one) => one.value.trim() !== "");
}

function isSame(one: string, other: string): boolean {
  return one.trim().toLowerCase() === other.trim().toLowerCase();
}
