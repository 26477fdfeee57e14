import { TelapiError } from "./errors.js";
import type { TokenAnswer } from "./messages.js";

/** Where a page is in a session: enough to go on after a reload. */
export interface Position {
  streamId: string;
  connectionId: string;
}

/** What the SDK needs of a WebSocket. Browsers' and the one of the package `ws` have it. */
export interface WebSocketLike {
  onopen: ((event: never) => void) | null;
  onmessage: ((event: never) => void) | null;
  onclose: ((event: never) => void) | null;
  onerror: ((event: never) => void) | null;
  readonly bufferedAmount: number;
  send(frame: string): void;
  close(code?: number, reason?: string): void;
  /** Cuts the line without a word, where that can be done. */
  terminate?(): void;
}

/** A class of WebSockets. */
export type WebSocketConstructor = new (url: string, protocols: string[]) => WebSocketLike;

/** How to reach a session. */
export type ConnectOptions = {
  /** Where to go on, after a reload: what `session.position` was. */
  from?: Position;
  /** For places without a global WebSocket, like Node 20. */
  WebSocket?: WebSocketConstructor;
  /** Waits between attempts are random, up to this much at first (1 s) … */
  minDelayMs?: number;
  /** … doubled with each attempt up to this much (30 s). */
  maxDelayMs?: number;
  /** How long a handshake may take (10 s). */
  connectTimeoutMs?: number;
  /** How long the service may take to answer a ping (10 s). */
  pongTimeoutMs?: number;
} & (
  | {
      /** Fetches a token through your own server, which has the API key. Asked again when the token was never used and went stale. */
      issue: () => Promise<TokenAnswer>;
      /** Where the socket is, if not at the answer's `wsUrl`. */
      url?: string;
    }
  | { token: TokenAnswer; url?: string }
  | { token: string; url: string }
);

/** A token with what it says about its session. */
export interface Ticket {
  token: string;
  url: string;
  sessionId: string;
  lifetimeMs: number;
  framesPerSecond: number;
}

/** Reads a token answer, or a bare token. The service alone can tell whether it is good. */
export function readTicket(given: string | TokenAnswer, url?: string): Ticket {
  // A server that passes on what it was answered passes on refusals as well.
  const { error } = Object(given) as { error?: { code?: string; message?: string; requestId?: string } };
  if (error?.code) throw new TelapiError(error.code, String(error.message), error.requestId ? { requestId: error.requestId } : {});
  try {
    const { token, wsUrl, limits } = typeof given === "string" ? { token: given, wsUrl: "", limits: undefined } : given;
    const claims = JSON.parse(atob(token.split(".")[1]!.replace(/-/g, "+").replace(/_/g, "/"))) as { sub: string; iat: number; exp: number };
    if (!claims.sub || !(claims.exp > claims.iat)) throw new Error("A claim is missing.");
    return {
      token,
      url: new URL(url ?? wsUrl).href,
      sessionId: claims.sub,
      lifetimeMs: 1000 * (claims.exp - claims.iat),
      framesPerSecond: limits?.framesPerSecond ?? 60,
    };
  } catch (cause) {
    throw new TelapiError("BAD_TOKEN", "This is not a call token with the URL of its socket.", { cause });
  }
}
