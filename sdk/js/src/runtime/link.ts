import type { IncomingMessage } from "node:http";
import { WebSocket } from "ws";
import { TelapiError } from "../errors.js";
import { parseRejection, type Rejection } from "../rejection.js";
import type { Frame } from "./types.js";

/** The close code for a peer that does not respond. */
const closeNoResponse = 4002;
/** The close code for a frame that this library does not understand. */
export const closeMalformed = 1002;

/** Callbacks of a link. After `lost` has been called, or after `Link.close`, none is called any more. */
export interface LinkEvents {
  open(): void;
  frame(frame: Frame): void;
  /** The connection is lost, or the service rejected it. */
  lost(closeCode: number, error: TelapiError, rejection?: Rejection): void;
}

/**
 * One WebSocket of a runtime. It is lost if the service does not complete the handshake, or sends nothing for too long.
 *
 * It uses the package `ws` also where Node has a WebSocket: that one hides pings and the response to a rejected handshake.
 */
export class Link {
  private readonly socket: WebSocket;
  private timeout: ReturnType<typeof setTimeout>;
  private silenceMs = 0;
  private closed = false;
  private cause: Error | undefined;

  constructor(url: URL, headers: Record<string, string>, timeoutMs: number, private readonly events: LinkEvents) {
    const socket = (this.socket = new WebSocket(url, ["telapi.runtime.v1"], { headers, perMessageDeflate: false }));
    socket.on("open", () => this.closed || events.open());
    socket.on("message", (data) => this.receive(String(data)));
    socket.on("ping", () => this.keepAlive());
    socket.on("error", (error) => (this.cause = error)); // a close event follows
    socket.on("close", (code, reason) => this.lose(code, String(reason)));
    socket.on("unexpected-response", (_, response) => void this.rejected(response));
    this.timeout = setTimeout(() => this.lose(closeNoResponse, "The service did not respond in time."), timeoutMs);
  }

  get bufferedAmount(): number {
    return this.socket.bufferedAmount;
  }

  send(frame: string): void {
    this.socket.send(frame, () => {}); // a close event follows an error
  }

  /** Restarts the time within which the service has to send something. */
  keepAlive(silenceMs = this.silenceMs): void {
    if (this.closed || !silenceMs) return;
    this.silenceMs = silenceMs;
    clearTimeout(this.timeout);
    this.timeout = setTimeout(() => this.lose(closeNoResponse, "The service sent no ping in time."), silenceMs);
  }

  /** Closes the connection with a close code. Without one, drops it. */
  close(closeCode?: number): void {
    this.closed = true;
    clearTimeout(this.timeout);
    if (closeCode) this.socket.close(closeCode);
    else this.socket.terminate();
  }

  private receive(data: string): void {
    if (this.closed) return;
    this.keepAlive();
    try {
      this.events.frame(JSON.parse(data) as Frame);
    } catch (cause) {
      this.cause = cause as Error;
      this.lose(closeMalformed, "");
    }
  }

  private async rejected(response: IncomingMessage): Promise<void> {
    const chunks: Buffer[] = [];
    try {
      for await (const chunk of response) chunks.push(chunk as Buffer);
    } catch {
      // the part that has arrived may do
    }
    const headers = new Headers({ "Retry-After": response.headers["retry-after"] ?? "" });
    const rejection = await parseRejection({ status: response.statusCode!, headers, json: async () => JSON.parse(String(Buffer.concat(chunks))) as unknown });
    this.lose(1006, rejection.error.message, rejection);
  }

  private lose(closeCode: number, reason: string, rejection?: Rejection): void {
    if (this.closed) return;
    this.close();
    const cause = this.cause as (Error & { code?: string }) | undefined;
    const message = reason || cause?.message || cause?.code || "The connection was lost.";
    this.events.lost(closeCode, rejection?.error ?? new TelapiError("CONNECTION_LOST", message, { closeCode, cause }), rejection);
  }
}
