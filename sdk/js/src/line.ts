import { TelapiError } from "./errors.js";
import type { ChannelMessage } from "./messages.js";
import type { WebSocketConstructor, WebSocketLike } from "./options.js";

/** What a line reports. Nothing comes after `lost`, nor after `end` was called. */
export interface LineEvents {
  message(message: ChannelMessage, raw: string): void;
  /** The line is gone; opened: it had been there. */
  lost(closeCode: number, reason: string, opened: boolean): void;
}

/** The code by which both ends say that they have heard nothing. */
const noAnswer = 4002;

/** One socket, watched: it is given up when it does not open, or when nothing is heard although a ping asked for it. */
export class Line {
  private readonly socket: WebSocketLike;
  private watch: ReturnType<typeof setTimeout> | undefined;
  private ping: (() => void) | undefined;
  private pingIntervalMs = 0;
  private probing = false;
  private over = false;

  constructor(
    Socket: WebSocketConstructor,
    url: string,
    token: string,
    connectTimeoutMs: number,
    private readonly pongTimeoutMs: number,
    private readonly events: LineEvents,
  ) {
    const socket = new Socket(url, ["telapi.v1", `telapi.bearer.${token}`]);
    let opened = false;
    socket.onopen = () => {
      opened = true;
    };
    socket.onmessage = (event: { data: unknown }) => this.hear(event.data);
    socket.onclose = (event: { code: number; reason: string }) => this.lose(event.code, event.reason, opened);
    socket.onerror = () => {}; // the close that follows says as much
    this.socket = socket;
    this.watch = setTimeout(() => this.lose(noAnswer, "The service did not answer in time.", opened), connectTimeoutMs);
  }

  get bufferedAmount(): number {
    return this.socket.bufferedAmount;
  }

  send(frame: string): void {
    this.socket.send(frame);
  }

  /** From now on silence is broken by pings. */
  keepAlive(pingIntervalMs: number, ping: () => void): void {
    this.ping = ping;
    this.pingIntervalMs = pingIntervalMs;
    this.rest();
  }

  /** Asks for a sign of life at once. */
  probe(): void {
    if (!this.ping) return;
    if (!this.probing) {
      this.probing = true; // and however often it is asked again, the first one counts
      clearTimeout(this.watch);
      this.watch = setTimeout(() => this.lose(noAnswer, "Nothing was heard in time.", true), this.pongTimeoutMs);
    }
    this.ping();
  }

  /** Ends the line on purpose: politely with a code, otherwise as a lost network does. */
  end(closeCode?: number): void {
    this.over = true;
    clearTimeout(this.watch);
    if (closeCode || !this.socket.terminate) this.socket.close(closeCode);
    else this.socket.terminate();
  }

  private hear(data: unknown): void {
    if (this.over || typeof data !== "string") return;
    if (this.ping) this.rest();
    let message: ChannelMessage;
    try {
      message = JSON.parse(data) as ChannelMessage;
    } catch {
      return; // not the service's
    }
    this.events.message(message, data);
  }

  private rest(): void {
    this.probing = false;
    clearTimeout(this.watch);
    this.watch = setTimeout(() => this.probe(), this.pingIntervalMs);
  }

  private lose(closeCode: number, reason: string, opened: boolean): void {
    if (this.over) return;
    this.end();
    this.events.lost(closeCode, reason, opened);
  }
}

/** The WebSocket of this place, unless one is given. */
export function socketClass(given?: WebSocketConstructor): WebSocketConstructor {
  const found = given ?? (globalThis as { WebSocket?: WebSocketConstructor }).WebSocket;
  if (!found) throw new TelapiError("NO_WEBSOCKET", 'There is no WebSocket here. Pass one: connect({ …, WebSocket }), with `import { WebSocket } from "ws"`.');
  return found;
}
