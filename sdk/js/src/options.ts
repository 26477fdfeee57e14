import { TelapiError } from "./errors.js";
import type { IceServer, TokenResponse } from "./messages.js";

/** A page's position in a session, to resume after a reload. */
export interface Position {
  streamId: string;
  connectionId: string;
}

/** The part of the WebSocket interface that the SDK uses. Browsers and the package `ws` implement it. */
export interface WebSocketLike {
  onopen: ((event: never) => void) | null;
  onmessage: ((event: never) => void) | null;
  onclose: ((event: never) => void) | null;
  onerror: ((event: never) => void) | null;
  readonly bufferedAmount: number;
  send(frame: string): void;
  close(code?: number, reason?: string): void;
  /** Closes the connection without a handshake, if supported. */
  terminate?(): void;
}

/** A WebSocket class. */
export type WebSocketConstructor = new (url: string, protocols: string[]) => WebSocketLike;

/** Options of `connect`. */
export type ConnectOptions = {
  /** The position to resume from, for example after a reload: a saved `session.position`. */
  from?: Position;
  /** A WebSocket implementation where there is no global one, as in Node 20. */
  WebSocket?: WebSocketConstructor;
  /** The first retry happens after a random delay of up to this value (default 1 s). It doubles with each attempt. */
  minDelayMs?: number;
  /** The limit for that doubling (default 30 s). */
  maxDelayMs?: number;
  /** Timeout of a handshake (default 10 s). */
  connectTimeoutMs?: number;
  /** How long to wait for the answer to a ping (default 10 s). */
  pongTimeoutMs?: number;
} & (
  | {
      /** Fetches a token from your own server, which has the API key. Called again if the token expires before it is used. */
      issue: () => Promise<TokenResponse>;
      /** The WebSocket URL, if it differs from the response's `wsUrl`. */
      url?: string;
    }
  | { token: TokenResponse; url?: string }
  | { token: string; url: string }
);

/** A call token, the values it contains, and the URL and limits that belong to it. */
export interface CallToken {
  token: string;
  url: string;
  sessionId: string;
  lifetimeMs: number;
  framesPerSecond: number;
  iceServers: IceServer[];
}

/** Parses a token response or a token string. It does not verify the token. */
export function parseToken(given: string | TokenResponse, url?: string): CallToken {
  // Your server may forward an error of the service instead of a token.
  const { error } = Object(given) as { error?: { code?: string; message?: string; requestId?: string } };
  if (error?.code) throw new TelapiError(error.code, String(error.message), error.requestId ? { requestId: error.requestId } : {});
  try {
    const { token, wsUrl, limits, iceServers = [] }: TokenResponse = typeof given === "string" ? { token: given, wsUrl: "" } : given;
    const claims = JSON.parse(atob(token.split(".")[1]!.replace(/-/g, "+").replace(/_/g, "/"))) as { sub: string; iat: number; exp: number };
    if (!claims.sub || !(claims.exp > claims.iat)) throw new Error("A claim is missing.");
    return {
      token,
      url: new URL(url ?? wsUrl).href,
      sessionId: claims.sub,
      lifetimeMs: 1000 * (claims.exp - claims.iat),
      framesPerSecond: limits?.framesPerSecond ?? 60,
      iceServers,
    };
  } catch (cause) {
    throw new TelapiError("BAD_TOKEN", "Not a call token with a WebSocket URL. Pass the response of POST /api/v1/sessions/token.", { cause });
  }
}
