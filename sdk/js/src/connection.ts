import { TelapiError } from "./errors.js";
import type { ChannelMessage } from "./messages.js";
import type { WebSocketConstructor, WebSocketLike } from "./options.js";

/** Callbacks of a connection. After `lost` has been called, or after `Connection.end`, none is called any more. */
export interface ConnectionEvents {
  message(message: ChannelMessage, raw: string): void;
  /** The connection is lost. `opened` is false if the handshake failed. */
  lost(closeCode: number, reason: string, opened: boolean): void;
}

/** The close code for a peer that does not respond. */
const closeNoResponse = 4002;

/** One WebSocket with timeouts. It is lost if the service does not complete the handshake or answer a ping in time. */
export class Connection {
  private readonly socket: WebSocketLike;
  private timeout: ReturnType<typeof setTimeout> | undefined; // for the handshake; later for the next ping, or for the answer to it
  private ping: (() => void) | undefined;
  private pingIntervalMs = 0;
  private awaitingPong = false; // a ping is unanswered
  private ended = false;

  constructor(
    Socket: WebSocketConstructor,
    url: string,
    token: string,
    connectTimeoutMs: number,
    private readonly pongTimeoutMs: number,
    private readonly events: ConnectionEvents,
  ) {
    const socket = new Socket(url, ["telapi.v1", `telapi.bearer.${token}`]);
    let opened = false;
    socket.onopen = () => {
      opened = true;
    };
    socket.onmessage = (event: { data: unknown }) => this.receive(event.data);
    socket.onclose = (event: { code: number; reason: string }) => this.lose(event.code, event.reason, opened);
    socket.onerror = () => {}; // a close event follows
    this.socket = socket;
    this.timeout = setTimeout(() => this.lose(closeNoResponse, "The service did not respond in time.", opened), connectTimeoutMs);
  }

  get bufferedAmount(): number {
    return this.socket.bufferedAmount;
  }

  send(frame: string): void {
    this.socket.send(frame);
  }

  /** Sends a ping whenever nothing was received for the given interval. */
  keepAlive(pingIntervalMs: number, ping: () => void): void {
    this.ping = ping;
    this.pingIntervalMs = pingIntervalMs;
    this.schedulePing();
  }

  /** Sends a ping now, to find out whether the connection still works. */
  probe(): void {
    if (!this.ping) return;
    if (!this.awaitingPong) {
      this.awaitingPong = true; // the timeout runs from the first unanswered ping
      clearTimeout(this.timeout);
      this.timeout = setTimeout(() => this.lose(closeNoResponse, "No response to a ping in time.", true), this.pongTimeoutMs);
    }
    this.ping();
  }

  /** Closes the connection with a close code. Without one, drops it like a network failure. */
  end(closeCode?: number): void {
    this.ended = true;
    clearTimeout(this.timeout);
    if (closeCode || !this.socket.terminate) this.socket.close(closeCode);
    else this.socket.terminate();
  }

  private receive(data: unknown): void {
    if (this.ended || typeof data !== "string") return;
    if (this.ping) this.schedulePing();
    let message: ChannelMessage;
    try {
      message = JSON.parse(data) as ChannelMessage;
    } catch {
      return; // ignore text that is not JSON: the service never sends any
    }
    this.events.message(message, data);
  }

  private schedulePing(): void {
    this.awaitingPong = false;
    clearTimeout(this.timeout);
    this.timeout = setTimeout(() => this.probe(), this.pingIntervalMs);
  }

  private lose(closeCode: number, reason: string, opened: boolean): void {
    if (this.ended) return;
    this.end();
    this.events.lost(closeCode, reason, opened);
  }
}

/** Returns the given WebSocket implementation or the global one. Throws if neither exists. */
export function webSocketClass(given?: WebSocketConstructor): WebSocketConstructor {
  const found = given ?? (globalThis as { WebSocket?: WebSocketConstructor }).WebSocket;
  if (!found) throw new TelapiError("NO_WEBSOCKET", 'No global WebSocket found. Pass one: connect({ …, WebSocket }), with `import { WebSocket } from "ws"`.');
  return found;
}
