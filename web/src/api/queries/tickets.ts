/** One-time tickets, for what a browser opens without headers: WebSockets and downloads. */
import { api, unwrap } from "../client";

export const createTicket = async (): Promise<string> => (await unwrap(api.POST("/api/v1/tickets"))).ticket;

/** Return the URL of an API route with a new ticket: it can be opened once, within 30 seconds. */
export async function addTicket(url: string): Promise<string> {
  const opened = new URL(url, location.origin);
  opened.searchParams.set("ticket", await createTicket());
  return opened.pathname + opened.search;
}
