/**
 * A shell in a sandbox over a WebSocket. Reconnects when the connection breaks: the shell keeps running, and the platform replays its
 * latest output.
 *
 * The socket is opened with a ticket: a browser cannot send the key of the login with it. Errors of the request for the ticket have messages.
 */
import { ApiError } from "@/api/client";
import { readSandbox, readTerminals } from "@/api/queries/sandboxes";
import { createTicket } from "@/api/queries/tickets";
import { Backoff } from "@/lib/backoff";
import { errorMessage } from "@/ui/states";
import { type Closed, type Outcome, outcomeOf } from "./outcome";

export type ConnectionState =
  | { kind: "connecting" }
  | { kind: "open" }
  | { kind: "interrupted" }
  | { kind: "ended"; exitCode: number | null }
  | { kind: "failed"; reason: string };

export interface ConnectionListener {
  state: (state: ConnectionState) => void;
  /** The shell is open. If it is not new (`again`), its earlier output follows. */
  opened: (terminalId: string, again: boolean) => void;
  data: (bytes: Uint8Array) => void;
  size: () => { cols: number; rows: number };
}

export class TerminalConnection {
  private readonly sandboxId: string;
  private readonly listener: ConnectionListener;
  private readonly backoff = new Backoff();
  private terminalId: string | undefined;
  private socket: WebSocket | undefined;
  private over = false;

  constructor(sandboxId: string, terminalId: string | undefined, listener: ConnectionListener) {
    this.sandboxId = sandboxId;
    this.terminalId = terminalId;
    this.listener = listener;
  }

  /** Stay connected until the shell ends, cannot be opened, or `stop` is called. */
  async start(): Promise<void> {
    this.listener.state({ kind: "connecting" });
    while (!this.over) {
      const result = await this.attempt();
      if (this.over) return;
      if (result.kind !== "reconnect") return this.listener.state(result);
      this.listener.state({ kind: "interrupted" });
      await this.backoff.wait();
    }
  }

  /** Disconnect; the shell keeps running. */
  stop(): void {
    this.over = true;
    this.backoff.hurry();
    this.socket?.close();
  }

  send(bytes: Uint8Array<ArrayBuffer>): void {
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(bytes);
  }

  resize(cols: number, rows: number): void {
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify({ type: "resize", cols, rows }));
  }

  private async attempt(): Promise<Outcome> {
    try {
      const ticket = await createTicket();
      if (this.over) return { kind: "reconnect" };
      const closed = await this.connection(ticket);
      if (this.over || closed.ended !== undefined || !this.terminalId)
        return outcomeOf(closed, true, await this.isSandboxLost(closed));
      return outcomeOf(closed, await this.shellExists(this.terminalId), false);
    } catch (error) {
      if (error instanceof ApiError && error.status >= 400 && error.status < 500 && error.status !== 429) {
        return { kind: "failed", reason: errorMessage(error) };
      }
      return { kind: "reconnect" };
    }
  }

  private connection(ticket: string): Promise<Closed> {
    const { cols, rows } = this.listener.size();
    const query = new URLSearchParams({ ticket, cols: String(cols), rows: String(rows) });
    if (this.terminalId) query.set("terminal", this.terminalId);
    const url = new URL(`/api/v1/sandboxes/${encodeURIComponent(this.sandboxId)}/terminal?${query}`, location.origin);
    url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
    const again = this.terminalId !== undefined;
    const closed: Closed = { code: 1006, reason: "" };
    return new Promise((resolve) => {
      const socket = new WebSocket(url);
      this.socket = socket;
      socket.binaryType = "arraybuffer";
      socket.onmessage = ({ data }: MessageEvent<ArrayBuffer | string>) => {
        if (this.over) return;
        if (typeof data !== "string") return this.listener.data(new Uint8Array(data));
        const message = JSON.parse(data) as {
          type: string;
          terminal?: string;
          ended?: boolean;
          exitCode?: number | null;
        };
        if (message.type === "opened" && message.terminal) {
          this.terminalId = message.terminal;
          this.backoff.reset();
          this.listener.opened(message.terminal, again);
          this.listener.state({ kind: "open" });
        } else if (message.type === "closed" && message.ended) {
          closed.ended = message.exitCode ?? null;
        }
      };
      socket.onclose = (event) => resolve({ ...closed, code: event.code, reason: event.reason });
    });
  }

  /** Return whether the shell still exists. A refused WebSocket does not give a reason. */
  private async shellExists(id: string): Promise<boolean> {
    return (await readTerminals(this.sandboxId)).some((shell) => shell.id === id);
  }

  private async isSandboxLost(closed: Closed): Promise<boolean> {
    if (closed.ended !== undefined || this.over) return false;
    const box = await readSandbox(this.sandboxId);
    return box.status === "destroyed" || box.status === "error";
  }
}
