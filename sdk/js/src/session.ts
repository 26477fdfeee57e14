import { Emitter } from "./emitter.js";
import { TelapiError } from "./errors.js";
import type { SessionEvents, State, StateChange } from "./events.js";
import { Connection, webSocketClass } from "./connection.js";
import { type ChannelMessage, type DurableType, encode, fieldOf, type IceServer, type MessageType, type Payload, type Payloads, type Ready, uuid } from "./messages.js";
import { type ConnectOptions, type Position, parseToken, type CallToken, type WebSocketConstructor } from "./options.js";
import { Outbox } from "./outbox.js";
import { explainRejection } from "./rejection.js";

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
/** Browser events after which a connection may be lost, or may be possible again. */
const networkEvents = ["online", "offline", "visibilitychange"];
/** Errors that do not reject a message: the service closes the WebSocket, and the message is sent again on the next one. */
const temporaryErrors = ["SERVICE_UNAVAILABLE", "INTERNAL_ERROR"];

/** Opens a session. Events start asynchronously: a listener that is added right after this call receives all of them. */
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
  private attempted = false; // a connection was attempted, so messages may have been missed
  private connection: Connection | undefined;
  private generation = 0; // incremented when a connection is opened or closed, so that outdated callbacks can stop
  private attempt = 0; // failed attempts since the last stable connection
  private handshakeFailedAt = -Infinity; // on the clock of performance.now
  private retry: ReturnType<typeof setTimeout> | undefined;
  private expiry: ReturnType<typeof setTimeout> | undefined;
  private networkDown = false;
  private readyAt = 0; // by performance.now(), which is monotonic; 0 while disconnected
  private lastReady: Ready | undefined;
  private resumeAt: Partial<Position>; // where the next connection resumes
  private lastChange: StateChange = { state: "connecting", attempt: 0 };
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
    return this.lastChange.state;
  }

  /** Why the session has ended or the connection was lost. */
  get reason(): TelapiError | undefined {
    return this.lastChange.reason;
  }

  /** The session's ID, once there is a token. */
  get sessionId(): string | undefined {
    return this.token?.sessionId;
  }

  /** The ICE servers of the token response, once there is a token. `callWebRtc` uses them. */
  get iceServers(): IceServer[] {
    return this.token?.iceServers ?? [];
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
      // The service's error would not contain an invalid ID, so the message would be sent again on every connection.
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
    sent.catch(() => {}); // callers may ignore the promise: `error` and `state` events report failures too
    return sent;
  }

  /**
   * Sends audio, unless there is no connection or the connection is too slow: then it drops the audio and returns false.
   * Throws if the audio is larger than a frame may be, because such a frame would end the session.
   */
  sendAudio(payload: Payload): boolean {
    if (this.state !== "connected" || this.connection!.bufferedAmount > maxBufferedAudio) return false;
    const frame = this.frame("audio", uuid(), Date.now(), encode(payload));
    const error = this.outbox.sizeError(frame);
    if (error) throw error;
    this.transmit(frame);
    return true;
  }

  /** Drops the connection like a network failure, for demonstrations and tests. `resume` reconnects. */
  cut(): void {
    if (this.state === "ended") return;
    this.attempted = true;
    this.disconnect();
    this.setState({ state: "cut" });
  }

  /** Reconnects now: after `cut`, or instead of waiting for the next attempt. */
  resume(): void {
    if (this.state === "connected" || this.state === "connecting" || this.state === "ended") return;
    void this.open();
  }

  /** Disconnects and removes all listeners. In the service, the session continues until it is ended or expires. */
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
        this.token = parseToken(given, options.url);
        this.outbox.framesPerSecond = this.token.framesPerSecond;
        this.expireIn(this.token.lifetimeMs); // a duration, because this machine's clock may be wrong
      }
    } catch (cause) {
      const error = cause instanceof TelapiError ? cause : new TelapiError("ISSUE_FAILED", `Fetching a token failed: ${String(cause)}`, { cause });
      return this.generation === generation ? this.end(error) : undefined;
    }
    const { url, token } = this.token;
    const target = new URL(url);
    // Without a cursor, resume from the start: the first connection may have missed a greeting.
    if (this.attempted) this.resumeAt = { streamId: "start", ...this.resumeAt };
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

  private expireIn(ms: number): void {
    clearTimeout(this.expiry);
    // An open connection is closed by the service before that.
    this.expiry = setTimeout(() => this.end(TelapiError.ofCloseCode(4504, "")!), Math.min(ms + 1_000, maxTimer));
  }

  private async lost(url: string, closeCode: number, reason: string, opened: boolean): Promise<void> {
    const { generation, attempted } = this;
    this.attempted = true;
    const connectedMs = this.readyAt ? performance.now() - this.readyAt : 0;
    this.connection = undefined;
    this.readyAt = 0;
    this.outbox.stop();
    const finalError = TelapiError.ofCloseCode(closeCode, reason);
    const ownHandshake = closeCode === 4502 && performance.now() - this.handshakeFailedAt < maxHandshakeDelayMs;
    if (finalError && !ownHandshake) return this.end(finalError);
    if (connectedMs > stableMs) this.attempt = 0;
    if (!opened) this.handshakeFailedAt = performance.now();
    if (opened) {
      const error = new TelapiError("CONNECTION_LOST", reason || "The connection was lost.", { closeCode });
      const restarted = closeCode === 1012 && !this.attempt; // the service restarts: spread the reconnects over the time it asks for
      return this.retryIn(error, restarted && this.lastReady ? Math.random() * this.lastReady.reconnectJitterMs : this.backOff());
    }
    const rejection = await explainRejection(url, this.token!.token);
    if (this.generation !== generation) return;
    if (!rejection) return this.retryIn(new TelapiError("UNREACHABLE", "The service could not be reached."), this.backOff());
    const expiredBeforeUse = rejection.final && "issue" in this.options && !this.lastReady && !this.reissued && [401, 410].includes(rejection.error.context.status!);
    if (expiredBeforeUse) {
      this.reissued = true;
      this.token = undefined;
      rejection.final = false;
    }
    // The owner may be this page's previous connection, whose loss the service has not noticed yet.
    if (attempted && rejection.error.code === "SESSION_IN_USE") rejection.final = false;
    this.events.emit("rejected", rejection);
    if (this.generation !== generation) return; // a listener changed the state
    if (rejection.final) return this.end(rejection.error);
    this.retryIn(rejection.error, rejection.retryAfterMs + this.backOff());
  }

  /** A random delay before the next attempt. */
  private backOff(): number {
    const { minDelayMs = 1_000, maxDelayMs = 30_000 } = this.options;
    return Math.random() * Math.min(maxDelayMs, minDelayMs * 2 ** this.attempt);
  }

  private retryIn(reason: TelapiError, ms: number): void {
    this.attempt++;
    // Retry also when the browser reports that it is offline: the service may run on the same machine.
    const retryInMs = Math.min(Math.round(this.networkDown ? (this.options.maxDelayMs ?? 30_000) : ms), maxTimer);
    this.retry = setTimeout(() => void this.open(), retryInMs);
    this.setState({ state: this.networkDown ? "offline" : "waiting", retryInMs, reason });
  }

  private readonly onNetworkEvent = ({ type }: Event): void => {
    if (type === "offline") {
      this.networkDown = true;
      if (this.state === "waiting") this.setState({ ...this.lastChange, state: "offline" });
    } else if (type === "online") {
      this.networkDown = false;
      this.attempt = 0; // attempts without a network do not count
      if (this.state === "offline" || this.state === "waiting") void this.open();
    }
    this.connection?.probe(); // it may have been lost with the old network, or while the page was suspended
  };

  private receive(message: ChannelMessage, raw: string): void {
    const { streamId, type } = message;
    const { generation } = this;
    const duplicate = streamId !== undefined && this.seen.has(streamId);
    this.events.emit("frame", { direction: "to_browser", message, raw, duplicate });
    if (duplicate || this.generation !== generation) return; // if a listener disconnected, the next connection replays the message
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
    this.readyAt = performance.now();
    this.textChatEnabled = ready.textChat;
    // Keep the requested position until the service has replayed the missed messages or reported a failure.
    this.resumeAt = { streamId: ready.streamId, ...this.resumeAt, connectionId: ready.connectionId };
    this.expireIn(Date.parse(ready.expiresAt) - serverTime);
    this.connection!.keepAlive(ready.pingIntervalMs, () => this.transmit(this.frame("ping", uuid(), Date.now())));
    this.outbox.maxBytes = ready.maxMessageBytes;
    this.events.emit("ready", ready);
    // Each listener may have disconnected.
    if (this.generation === generation) this.setState({ state: "connected" });
    if (this.generation === generation) this.outbox.start();
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
    this.lastChange = { ...change, attempt: this.attempt };
    this.events.emit("state", this.lastChange);
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
