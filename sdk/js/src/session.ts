import { Emitter } from "./emitter.js";
import { finalCloseError, TelapiError } from "./errors.js";
import type { SessionEvents, State, StateChange } from "./events.js";
import { Connection, webSocketClass } from "./connection.js";
import { type ChannelMessage, type DurableType, fieldOf, type MessageType, type Payload, type Payloads, type Ready, uuid } from "./messages.js";
import { type ConnectOptions, type Position, parseToken, type CallToken, type WebSocketConstructor } from "./options.js";
import { Outbox } from "./outbox.js";
import { explainRefusal } from "./refusal.js";

/** A connection that lasted this long counts as stable: the retry delay starts from the minimum again. */
const stableMs = 5_000;
/** A failed handshake may reach the service this much later, through a busy proxy, and replace the connection that was opened after it. */
const maxHandshakeDelayMs = 60_000;
/** Number of cursors kept to detect duplicates; more than the service replays. */
const maxSeen = 1_024;
/** The maximum delay of setTimeout; larger values fire immediately. */
const maxTimer = 2 ** 31 - 1;
/** Audio is dropped while this many bytes are buffered: late speech is worse than none. */
const maxBufferedAudio = 65_536;
/** Browser events after which the connection may be lost or possible again. */
const networkEvents = ["online", "offline", "visibilitychange"];
/** Error codes after which the service closes the WebSocket, and the message is sent again on the next one. */
const temporaryErrors = ["SERVICE_UNAVAILABLE", "INTERNAL_ERROR"];

/** Opens a session. Add listeners in the same tick: no event is emitted before that. */
export function connect(options: ConnectOptions): Session {
  return new Session(options);
}

/** A session, across any number of connections. */
export class Session {
  private readonly events = new Emitter<SessionEvents>();
  private readonly Socket: WebSocketConstructor;
  private readonly outbox = new Outbox((frame) => this.transmit(frame), 60, 65_536);
  private readonly seen = new Set<string>();
  private token: CallToken | undefined;
  private reissued = false; // a second token was fetched
  private tried = false; // a connection was attempted, so messages may have been missed
  private connection: Connection | undefined;
  private generation = 0; // incremented when a connection is opened or closed, so that outdated callbacks can stop
  private attempt = 0; // failed attempts since the last stable connection
  private handshakeFailedAt = -Infinity; // on the clock of performance.now
  private retry: ReturnType<typeof setTimeout> | undefined;
  private expiry: ReturnType<typeof setTimeout> | undefined;
  private networkDown = false;
  private readyAt = 0; // on the clock of performance.now; 0 while disconnected
  private lastReady: Ready | undefined;
  private resumeAt: Partial<Position>; // for the next connection
  private current: StateChange = { state: "connecting", attempt: 0 };
  private textChatEnabled = true;

  /** @internal */
  constructor(private readonly options: ConnectOptions) {
    this.Socket = webSocketClass(options.WebSocket);
    this.resumeAt = { ...options.from };
    for (const name of networkEvents) globalThis.addEventListener?.(name, this.onNetworkEvent);
    queueMicrotask(() => this.generation === 0 && void this.open());
  }

  /** The current state. */
  get state(): State {
    return this.current.state;
  }

  /** Why the session has ended or the connection was lost. */
  get reason(): TelapiError | undefined {
    return this.current.reason;
  }

  /** The session's ID, once there is a token. */
  get sessionId(): string | undefined {
    return this.token?.sessionId;
  }

  /** Whether text chat is enabled. */
  get textChat(): boolean {
    return this.textChatEnabled;
  }

  /** The value for `connect({ from })`, for example to resume after a reload. */
  get position(): Position | undefined {
    const { streamId, connectionId } = this.resumeAt;
    return streamId && connectionId ? { streamId, connectionId } : undefined;
  }

  /** Adds a listener and returns a function that removes it. */
  on<Name extends keyof SessionEvents>(name: Name, listener: SessionEvents[Name]): () => void {
    return this.events.on(name, listener);
  }

  /** Resolves when the session is connected; rejects when it has ended. */
  whenReady(): Promise<Ready> {
    return new Promise((resolve, reject) => {
      const settle = () => {
        if (this.state === "connected") resolve(this.lastReady!);
        else if (this.state === "ended") reject(this.reason!);
        else return;
        unsubscribe();
      };
      const unsubscribe = this.on("state", settle);
      settle();
    });
  }

  /**
   * Sends a message to the runtime. Resolves with its ID when it is acknowledged: the runtime will receive it once and in
   * order. Rejects with a TelapiError if it was rejected or the session has ended. Unacknowledged messages are sent again
   * after a reconnect. Pass your own `messageId` (a UUID) to repeat a message without duplicating it.
   */
  send<Type extends DurableType>(type: Type, payload: Payloads[Type], { messageId = uuid() } = {}): Promise<string> {
    const sent = new Promise<string>((resolve, reject) => {
      if (this.state === "ended") throw this.reason!;
      if (/^(audio|p[io]ng)$/.test(type)) throw new TelapiError("VALIDATION_ERROR", `${type} messages are not acknowledged. Use sendAudio for audio.`);
      // The service cannot reference any other ID in its error, and would reject it on every connection.
      if (!/^[\da-f]{8}(-[\da-f]{4}){3}-[\da-f]{12}$/i.test(messageId)) throw new TelapiError("VALIDATION_ERROR", `messageId must be a UUID, not "${messageId}".`);
      const body = encode(payload);
      const timestamp = Date.now();
      this.outbox.add({
        messageId,
        frame: () => this.frame(type, messageId, timestamp, body),
        resolve: () => resolve(messageId),
        reject,
      });
    });
    sent.catch(() => {}); // optional to handle: `error` and `state` events report the same
    return sent;
  }

  /**
   * Sends audio immediately or not at all. Returns false if it was dropped because there is no connection or it can't keep
   * up. Throws if it is larger than a frame can be, which would end the session.
   */
  sendAudio(payload: Payload): boolean {
    if (this.state !== "connected" || this.connection!.bufferedAmount > maxBufferedAudio) return false;
    const frame = this.frame("audio", uuid(), Date.now(), encode(payload));
    const error = this.outbox.sizeError(frame);
    if (error) throw error;
    this.transmit(frame);
    return true;
  }

  /** Drops the connection like a lost network; `resume` reconnects. For demonstrations and tests. */
  cut(): void {
    if (this.state === "ended") return;
    this.tried = true;
    this.disconnect();
    this.setState({ state: "cut" });
  }

  /** Reconnects after `cut`, or without waiting for the next attempt. */
  resume(): void {
    if (this.state === "connected" || this.state === "connecting" || this.state === "ended") return;
    void this.open();
  }

  /** Disconnects. The session itself continues until it is ended or expires. */
  dispose(): void {
    this.end(new TelapiError("DISPOSED", "The session was disposed."), 1000);
  }

  [Symbol.dispose](): void {
    this.dispose();
  }

  private async open(): Promise<void> {
    this.disconnect();
    const generation = this.generation;
    this.setState({ state: "connecting" });
    const { options } = this;
    if (this.generation !== generation) return; // a listener changed the state
    try {
      if (!this.token) {
        const given = "issue" in options ? await options.issue() : options.token;
        if (this.generation !== generation) return; // a later attempt fetches its own token
        this.token = this.useToken(parseToken(given, options.url));
      }
    } catch (cause) {
      const error = cause instanceof TelapiError ? cause : new TelapiError("ISSUE_FAILED", `Fetching a token failed: ${String(cause)}`, { cause });
      return this.generation === generation ? this.end(error) : undefined;
    }
    const { url, token } = this.token;
    const target = new URL(url);
    // Without a cursor, resume from the start: the first connection may have missed a greeting.
    if (this.tried) this.resumeAt = { streamId: "start", ...this.resumeAt };
    for (const [name, value] of Object.entries(this.resumeAt)) target.searchParams.set(name, value);
    try {
      this.connection = new Connection(this.Socket, target.href, token, options.connectTimeoutMs ?? 10_000, options.pongTimeoutMs ?? 10_000, {
        message: (message, raw) => this.receive(message, raw),
        lost: (closeCode, reason, opened) => void this.lost(target.href, closeCode, reason, opened),
      });
    } catch (cause) {
      this.end(new TelapiError("BAD_URL", `Cannot open a WebSocket at ${url}: ${String(cause)}`, { cause }));
    }
  }

  /** Applies the token's limits. The session expires after the token's lifetime, which does not depend on this machine's clock. */
  private useToken(token: CallToken): CallToken {
    this.outbox.framesPerSecond = token.framesPerSecond;
    this.expireIn(token.lifetimeMs);
    return token;
  }

  private expireIn(ms: number): void {
    clearTimeout(this.expiry);
    // The service closes the connection first; this covers a lost connection.
    this.expiry = setTimeout(() => this.end(finalCloseError(4504, "")!), Math.min(ms + 1_000, maxTimer));
  }

  private async lost(url: string, closeCode: number, reason: string, opened: boolean): Promise<void> {
    const { generation, tried } = this;
    this.tried = true;
    const connectedMs = this.readyAt ? performance.now() - this.readyAt : 0;
    this.connection = undefined;
    this.readyAt = 0;
    this.outbox.stop();
    const finalError = finalCloseError(closeCode, reason);
    const ownHandshake = closeCode === 4502 && performance.now() - this.handshakeFailedAt < maxHandshakeDelayMs;
    if (finalError && !ownHandshake) return this.end(finalError);
    if (connectedMs > stableMs) this.attempt = 0;
    if (!opened) this.handshakeFailedAt = performance.now();
    if (opened) {
      const error = new TelapiError("CONNECTION_LOST", reason || "The connection was lost.", { closeCode });
      return this.retryIn(error, closeCode === 1012 && this.lastReady && !this.attempt ? Math.random() * this.lastReady.reconnectJitterMs : this.backOff());
    }
    const refusal = await explainRefusal(url, this.token!.token);
    if (this.generation !== generation) return;
    if (!refusal) return this.retryIn(new TelapiError("UNREACHABLE", "The service could not be reached."), this.backOff());
    const expiredBeforeUse = refusal.final && "issue" in this.options && !this.lastReady && !this.reissued && [401, 410].includes(refusal.error.context.status!);
    if (expiredBeforeUse) {
      this.reissued = true;
      this.token = undefined;
      refusal.final = false;
    }
    // The owner may be this page's previous connection, whose loss the service has not noticed yet.
    if (tried && refusal.error.code === "SESSION_IN_USE") refusal.final = false;
    this.events.emit("refused", refusal);
    if (this.generation !== generation) return; // a listener changed the state
    if (refusal.final) return this.end(refusal.error);
    this.retryIn(refusal.error, refusal.retryAfterMs + this.backOff());
  }

  /** A random delay before the next attempt. */
  private backOff(): number {
    const { minDelayMs = 1_000, maxDelayMs = 30_000 } = this.options;
    return Math.random() * Math.min(maxDelayMs, minDelayMs * 2 ** this.attempt);
  }

  private retryIn(reason: TelapiError, ms: number): void {
    this.attempt++;
    // Being offline is only a hint: the service may run on the same machine.
    const retryInMs = Math.min(Math.round(this.networkDown ? (this.options.maxDelayMs ?? 30_000) : ms), maxTimer);
    this.retry = setTimeout(() => void this.open(), retryInMs);
    this.setState({ state: this.networkDown ? "offline" : "waiting", retryInMs, reason });
  }

  private readonly onNetworkEvent = ({ type }: Event): void => {
    if (type === "offline") {
      this.networkDown = true;
      if (this.state === "waiting") this.setState({ ...this.current, state: "offline" });
    } else if (type === "online") {
      this.networkDown = false;
      this.attempt = 0; // attempts without a network do not count
      if (this.state === "offline" || this.state === "waiting") void this.open();
    }
    this.connection?.probe(); // the connection may have died with the old network or while the page slept
  };

  private receive(message: ChannelMessage, raw: string): void {
    const { streamId, type } = message;
    const { generation } = this;
    const duplicate = streamId !== undefined && this.seen.has(streamId);
    this.events.emit("frame", { direction: "to_browser", message, raw, duplicate });
    if (duplicate || this.generation !== generation) return; // a listener disconnected: the message is replayed on the next connection
    const payload = (message[fieldOf(type)] ?? {}) as Payload;
    if (streamId) this.advance(streamId);
    else this.handleServiceMessage(message);
    if (type === "control" && /^(en|dis)able_text_chat$/.test(String(payload.command))) this.textChatEnabled = payload.command === "enable_text_chat";
    this.events.emit(type, payload as never, message);
    this.events.emit("message", message);
  }

  /** Advances the position to a message of the runtime. */
  private advance(streamId: string): void {
    this.resumeAt.streamId = streamId;
    this.seen.add(streamId);
    if (this.seen.size > maxSeen) this.seen.delete(this.seen.values().next().value!);
  }

  /** Handles the service's own messages, which have no cursor. */
  private handleServiceMessage({ type, status, reconnect, error, timestamp }: ChannelMessage): void {
    if (type === "ping") this.transmit(this.frame("pong", uuid(), Date.now()));
    else if (type === "status" && status?.event === "ready") this.handleReady(status as unknown as Ready, timestamp);
    else if (type === "status" && status?.event === "ack") this.outbox.settle(String(status.messageId));
    else if (type === "reconnect" && !reconnect?.recovered) this.resumeAt.streamId = this.lastReady!.streamId;
    else if (type === "error" && error && !temporaryErrors.includes(String(error.code))) {
      this.outbox.settle(error.relatesTo, new TelapiError(String(error.code), String(error.message), { details: error.issues }));
    }
  }

  private handleReady(ready: Ready, serverTime: number): void {
    const { generation } = this;
    this.lastReady = ready;
    this.readyAt = performance.now(); // monotonic, unlike the time of day
    this.textChatEnabled = ready.textChat;
    // Keep the requested position until the service has replayed the missed messages or reported a failure.
    this.resumeAt = { streamId: ready.streamId, ...this.resumeAt, connectionId: ready.connectionId };
    this.expireIn(Date.parse(ready.expiresAt) - serverTime);
    this.connection!.keepAlive(ready.pingIntervalMs, () => this.transmit(this.frame("ping", uuid(), Date.now())));
    this.outbox.maxBytes = ready.maxMessageBytes;
    this.events.emit("ready", ready);
    if (this.generation === generation) this.setState({ state: "connected" });
    if (this.generation === generation) this.outbox.start(); // unless a listener disconnected
  }

  private frame(type: MessageType, messageId: string, timestamp: number, body?: string): string {
    const envelope = JSON.stringify({ type, sessionId: this.sessionId, messageId, timestamp, direction: "to_ari" });
    return body ? `${envelope.slice(0, -1)},"${fieldOf(type)}":${body}}` : envelope;
  }

  private transmit(raw: string): void {
    this.connection!.send(raw);
    if (this.events.has("frame")) this.events.emit("frame", { direction: "to_ari", message: JSON.parse(raw) as ChannelMessage, raw, duplicate: false });
  }

  private setState(change: Omit<StateChange, "attempt">): void {
    this.current = { ...change, attempt: this.attempt };
    this.events.emit("state", this.current);
  }

  /** Closes the connection and cancels a pending attempt. */
  private disconnect(closeCode?: number): void {
    this.generation++;
    clearTimeout(this.retry);
    this.outbox.stop();
    this.connection?.end(closeCode);
    this.connection = undefined;
    this.readyAt = 0;
  }

  private end(reason: TelapiError, closeCode?: number): void {
    if (this.state === "ended") return;
    this.disconnect(closeCode);
    clearTimeout(this.expiry);
    for (const name of networkEvents) globalThis.removeEventListener?.(name, this.onNetworkEvent);
    this.setState({ state: "ended", reason });
    this.outbox.fail(reason);
    this.events.clear();
  }
}

/** Encodes a payload as JSON. Replaces lone surrogates, as at the end of a truncated string: the service rejects them. */
function encode(payload: Payload): string {
  return JSON.stringify(payload)?.replace(/(\\\\)|\\ud[89a-f]../g, (_, backslash?: string) => backslash ?? "\ufffd");
}
