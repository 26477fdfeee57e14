/** A payload whose members the parties agree on among themselves. */
export type Payload = Record<string, unknown>;

/** What each type of message carries. All of them may carry more than is named here. */
export interface Payloads {
  chat: Payload & { text?: string };
  browser_action: Payload;
  action: Payload;
  action_result: Payload;
  audio: Payload;
  status: Payload & { event?: string };
  /** The service itself obeys enable_text_chat and disable_text_chat; other commands pass through. */
  control: Payload & { command?: string };
  /** Sent after a resume. Without `recovered` messages are missing: reload what you show. */
  reconnect: Payload & { recovered?: boolean; count?: number };
  error: Payload & { code?: string; message?: string; fatal?: boolean; relatesTo?: string };
  ping: Payload;
  pong: Payload;
}

/** The types of messages on a session's socket. */
export type MessageType = keyof Payloads;

/** The types that are kept, acknowledged and resent; the others are gone when the line is. */
export type DurableType = Exclude<MessageType, "audio" | "ping" | "pong">;

/** The envelope of everything on a session's socket. The payload lies in the member named after the type. */
export interface ChannelMessage {
  type: MessageType;
  sessionId: string;
  messageId: string;
  /** The cursor of a message from the runtime; the service's own messages have none. */
  streamId?: string;
  /** Unix time in milliseconds, by the sender's clock. */
  timestamp: number;
  direction: "to_browser" | "to_ari";
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
  /** Where this connection starts in the session's history. */
  streamId: string;
  resumed: boolean;
  pingIntervalMs: number;
  maxMessageBytes: number;
  /** Whether chat is welcome for now. */
  textChat: boolean;
  /** When the session's time is over, reconnects included. */
  expiresAt: string;
  reconnectJitterMs: number;
}

/** The answer to `POST /api/v1/sessions/token`, as far as the SDK reads it. */
export interface TokenAnswer {
  token: string;
  wsUrl: string;
  limits?: { framesPerSecond?: number };
}

/** The member that carries a type's payload: `browser_action` → `browserAction`. */
export function fieldOf(type: MessageType): Exclude<keyof ChannelMessage, "type" | "timestamp"> {
  return type.replace(/_(.)/, (_, letter: string) => letter.toUpperCase()) as "chat";
}

/** A random UUID. `crypto.randomUUID` would need a secure context, which a page in development may not have. */
export function uuid(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6]! & 0x0f) | 0x40;
  bytes[8] = (bytes[8]! & 0x3f) | 0x80;
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
}
