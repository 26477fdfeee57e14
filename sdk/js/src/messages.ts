/** A free-form payload. */
export type Payload = Record<string, unknown>;

/** The payload of each message type. Payloads can have more members than listed here. */
export interface Payloads {
  chat: Payload & { text?: string };
  browser_action: Payload;
  action: Payload;
  action_result: Payload;
  audio: Payload;
  status: Payload & { event?: string };
  /** The service handles enable_text_chat and disable_text_chat; other commands pass through. */
  control: Payload & { command?: string };
  /** Sent after a resume. If `recovered` is false, messages are missing: reload what you show. */
  reconnect: Payload & { recovered?: boolean; count?: number };
  error: Payload & { code?: string; message?: string; fatal?: boolean; relatesTo?: string };
  ping: Payload;
  pong: Payload;
}

/** The message types of a session. */
export type MessageType = keyof Payloads;

/** The types that are stored, acknowledged and resent. Messages of the other types are lost with the connection. */
export type DurableType = Exclude<MessageType, "audio" | "ping" | "pong">;

/** The envelope of every frame. The payload is in the member named after the type. */
export interface ChannelMessage {
  type: MessageType;
  sessionId: string;
  messageId: string;
  /** The cursor of a message from the runtime. The service's own messages have none. */
  streamId?: string;
  /** Unix time in milliseconds, by the sender's clock. */
  timestamp: number;
  direction: "to_browser" | "to_ari";
  /** Connects the spans of sender and receiver, if the sender is traced. */
  trace?: { traceId?: string; parentSpanId?: string; callId?: string; transactionId?: string };
  chat?: Payloads["chat"];
  browserAction?: Payload;
  action?: Payload;
  actionResult?: Payload;
  audio?: Payload;
  status?: Payloads["status"];
  control?: Payloads["control"];
  reconnect?: Payloads["reconnect"];
  error?: Payloads["error"];
}

/** The first message of every connection, as `status`. */
export interface Ready {
  event: "ready";
  connectionId: string;
  /** The position in the session's history at which this connection starts. */
  streamId: string;
  resumed: boolean;
  pingIntervalMs: number;
  maxMessageBytes: number;
  /** Whether text chat is enabled. */
  textChat: boolean;
  /** When the session expires. */
  expiresAt: string;
  reconnectJitterMs: number;
}

/** A STUN or TURN server for WebRTC calls. */
export interface IceServer {
  urls: string | string[];
  username?: string;
  credential?: string;
}

/** The response of `POST /api/v1/sessions/token`, as far as the SDK uses it. */
export interface TokenResponse {
  token: string;
  wsUrl: string;
  limits?: { framesPerSecond?: number };
  iceServers?: IceServer[];
}

/** Returns the name of the member that contains a type's payload, such as `browserAction` for `browser_action`. */
export function fieldOf(type: MessageType): Exclude<keyof ChannelMessage, "type" | "timestamp"> {
  return type.replace(/_(.)/, (_, letter: string) => letter.toUpperCase()) as "chat";
}

/** Returns a random UUID. `crypto.randomUUID` exists only on pages served over HTTPS or from localhost. */
export function uuid(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6]! & 0x0f) | 0x40;
  bytes[8] = (bytes[8]! & 0x3f) | 0x80;
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
}

/** Encodes a value as JSON. Replaces lone surrogates, which the service rejects: a string that was cut can end with one. */
export function encode(payload: unknown): string {
  return JSON.stringify(payload)?.replace(/(\\\\)|\\ud[89a-f]../g, (_, backslash?: string) => backslash ?? "\ufffd");
}
