import { Emitter } from "./emitter.js";
import { finalClose, TelapiError } from "./errors.js";
import type { SessionEvents, State, StateChange } from "./events.js";
import { Line, socketClass } from "./line.js";
import { type ChannelMessage, type DurableType, fieldOf, type MessageType, type Payload, type Payloads, type Ready, uuid } from "./messages.js";
import { type ConnectOptions, type Position, readTicket, type Ticket, type WebSocketConstructor } from "./options.js";
import { Outbox } from "./outbox.js";
import { askWhy } from "./refusal.js";

/** A connection that lasted this long was a good one: the next loss starts with short waits again. */
const steadyMs = 5_000;
/** How many cursors are remembered to tell what has come before; more than the service replays. */
const remembered = 1_024;
/** What a timer can be set to at the most; more would be taken for none. */
const maxTimer = 2 ** 31 - 1;
/** Audio is dropped while this much of it is stuck in the socket: late speech is worse than none. */
const maxBufferedAudio = 65_536;
/** What a browser tells when the line may be gone, or there again. */
const signs = ["online", "offline", "visibilitychange"];
/** Refusals of a message that the service could not take for now; it closes the socket, and the message is sent again. */
const transient = ["SERVICE_UNAVAILABLE", "INTERNAL_ERROR"];

/** Opens a session. Listen to what it tells before you give the turn away: nothing comes before that. */
export function connect(options: ConnectOptions): Session {
  return new Session(options);
}

/** One browser's session, across any number of connections. */
export class Session {
  private readonly events = new Emitter<SessionEvents>();
  private readonly Socket: WebSocketConstructor;
  private readonly outbox = new Outbox((frame) => this.transmit(frame), 60, 65_536);
  private readonly seen = new Set<string>();
  private ticket: Ticket | undefined;
  private reissued = false;
  private tried = false; // there was a line: the service may have more of it than was seen here
  private line: Line | undefined;
  private turn = 0; // counts what was begun, so that what was overtaken can tell
  private attempt = 0;
  private retry: ReturnType<typeof setTimeout> | undefined;
  private expiry: ReturnType<typeof setTimeout> | undefined;
  private networkGone = false;
  private readyAt = 0;
  private last: Ready | undefined;
  private at: Partial<Position>;
  private change: StateChange = { state: "connecting", attempt: 0 };
  private chat = true;

  /** @internal */
  constructor(private readonly options: ConnectOptions) {
    this.Socket = socketClass(options.WebSocket);
    this.at = { ...options.from };
    for (const name of signs) globalThis.addEventListener?.(name, this.surroundings);
    queueMicrotask(() => this.turn === 0 && void this.open());
  }

  /** Where the session stands. */
  get state(): State {
    return this.change.state;
  }

  /** Why the session has ended, or the line was lost. */
  get reason(): TelapiError | undefined {
    return this.change.reason;
  }

  /** The session's id, once there is a token. */
  get sessionId(): string | undefined {
    return this.ticket?.sessionId;
  }

  /** Whether chat is welcome, as far as the service has said. */
  get textChat(): boolean {
    return this.chat;
  }

  /** What `connect({ from })` needs to go on here, for instance after a reload. */
  get position(): Position | undefined {
    const { streamId, connectionId } = this.at;
    return streamId && connectionId ? { streamId, connectionId } : undefined;
  }

  /** Calls the listener whenever it happens, until the returned function is called. */
  on<Name extends keyof SessionEvents>(name: Name, listener: SessionEvents[Name]): () => void {
    return this.events.on(name, listener);
  }

  /** Resolves as soon as the session is connected; rejects when it has ended. */
  whenReady(): Promise<Ready> {
    return new Promise((resolve, reject) => {
      const settle = () => {
        if (this.state === "connected") resolve(this.last!);
        else if (this.state === "ended") reject(this.reason!);
        else return;
        off();
      };
      const off = this.on("state", settle);
      settle();
    });
  }

  /**
   * Sends a message to the runtime. Resolves with its id once it is acknowledged: it will reach the runtime, once and in
   * order. Rejects with a TelapiError when it was refused or the session has ended. What is not acknowledged when the
   * line is lost is sent again. Give a `messageId` of your own (a UUID) to repeat a message without doubling it.
   */
  send<Type extends DurableType>(type: Type, payload: Payloads[Type], { messageId = uuid() } = {}): Promise<string> {
    const sent = new Promise<string>((resolve, reject) => {
      if (this.state === "ended") throw this.reason!;
      if (/^(audio|p[io]ng)$/.test(type)) throw new TelapiError("VALIDATION_ERROR", `Nobody acknowledges ${type}. For audio there is sendAudio.`);
      // The service could not say which message it refuses by another id, and would refuse it on every connection.
      if (!/^[\da-f]{8}(-[\da-f]{4}){3}-[\da-f]{12}$/i.test(messageId)) throw new TelapiError("VALIDATION_ERROR", "A messageId is a UUID.");
      const body = wellFormed(payload);
      const timestamp = Date.now();
      this.outbox.add({
        messageId,
        frame: () => this.frame(type, messageId, timestamp, body),
        resolve: () => resolve(messageId),
        reject,
      });
    });
    sent.catch(() => {}); // who does not care for the outcome need not handle it: refusals are told as `error`, ends as `state`
    return sent;
  }

  /**
   * Sends audio now or never. False: it was dropped, because there is no connection or it does not keep up. Throws when it
   * is larger than a frame may be, which would cost the session.
   */
  sendAudio(payload: Payload): boolean {
    if (this.state !== "connected" || this.line!.bufferedAmount > maxBufferedAudio) return false;
    const frame = this.frame("audio", uuid(), Date.now(), wellFormed(payload));
    const problem = this.outbox.tooLarge(frame);
    if (problem) throw problem;
    this.transmit(frame);
    return true;
  }

  /** Cuts the line, as a lost network would; `resume` comes back. For demonstrations and tests. */
  cut(): void {
    if (this.state === "ended") return;
    this.tried = true;
    this.hangUp();
    this.become({ state: "cut" });
  }

  /** Comes back after `cut`, or without waiting any longer. */
  resume(): void {
    if (this.state === "connected" || this.state === "connecting" || this.state === "ended") return;
    void this.open();
  }

  /** Leaves the session, which goes on without this page until it is ended or its time is over. */
  dispose(): void {
    this.end(new TelapiError("DISPOSED", "The session was disposed of."), 1000);
  }

  [Symbol.dispose](): void {
    this.dispose();
  }

  private async open(): Promise<void> {
    this.hangUp();
    const turn = this.turn;
    this.become({ state: "connecting" });
    const { options } = this;
    if (this.turn !== turn) return; // a listener decided otherwise
    try {
      if (!this.ticket) {
        const given = "issue" in options ? await options.issue() : options.token;
        if (this.turn !== turn) return; // whoever came after has asked for a token of its own, or needs none
        this.ticket = this.admit(readTicket(given, options.url));
      }
    } catch (cause) {
      const error = cause instanceof TelapiError ? cause : new TelapiError("ISSUE_FAILED", `No token was issued: ${String(cause)}`, { cause });
      return this.turn === turn ? this.end(error) : undefined;
    }
    const { url, token } = this.ticket;
    const target = new URL(url);
    // Who was cut off before the first frame has no cursor, but may have missed a greeting.
    if (this.tried) this.at = { streamId: "start", ...this.at };
    for (const [name, value] of Object.entries(this.at)) target.searchParams.set(name, value);
    try {
      this.line = new Line(this.Socket, target.href, token, options.connectTimeoutMs ?? 10_000, options.pongTimeoutMs ?? 10_000, {
        message: (message, raw) => this.receive(message, raw),
        lost: (closeCode, reason, opened) => void this.lost(target.href, closeCode, reason, opened),
      });
    } catch (cause) {
      this.end(new TelapiError("BAD_URL", `A socket cannot be opened at ${url}: ${String(cause)}`, { cause }));
    }
  }

  /** Takes a token: from now on the session has an end, whatever this machine's clock says. */
  private admit(ticket: Ticket): Ticket {
    this.outbox.framesPerSecond = ticket.framesPerSecond;
    this.expireIn(ticket.lifetimeMs);
    return ticket;
  }

  private expireIn(ms: number): void {
    clearTimeout(this.expiry);
    // The service closes first, and says so; this is for those who do not hear it.
    this.expiry = setTimeout(() => this.end(finalClose(4504, "")!), Math.min(ms + 1_000, maxTimer));
  }

  private async lost(url: string, closeCode: number, reason: string, opened: boolean): Promise<void> {
    const { turn, tried } = this;
    this.tried = true;
    const lasted = this.readyAt ? performance.now() - this.readyAt : 0;
    this.line = undefined;
    this.readyAt = 0;
    this.outbox.stop();
    const final = finalClose(closeCode, reason);
    if (final) return this.end(final);
    if (lasted > steadyMs) this.attempt = 0;
    if (opened) {
      const error = new TelapiError("CONNECTION_LOST", reason || "The connection was lost.", { closeCode });
      return this.wait(error, closeCode === 1012 && this.last && !this.attempt ? Math.random() * this.last.reconnectJitterMs : this.backOff());
    }
    const refusal = await askWhy(url, this.ticket!.token);
    if (this.turn !== turn) return;
    if (!refusal) return this.wait(new TelapiError("UNREACHABLE", "The service could not be reached."), this.backOff());
    const stale = refusal.final && "issue" in this.options && !this.last && !this.reissued && [401, 410].includes(refusal.error.context.status!);
    if (stale) {
      this.reissued = true;
      this.ticket = undefined;
      refusal.final = false;
    }
    // It may be a connection of this very page that has the session, and its end is not noticed yet.
    if (tried && refusal.error.code === "SESSION_IN_USE") refusal.final = false;
    this.events.emit("refused", refusal);
    if (this.turn !== turn) return; // a listener decided otherwise
    if (refusal.final) return this.end(refusal.error);
    this.wait(refusal.error, refusal.retryAfterMs + this.backOff());
  }

  private backOff(): number {
    const { minDelayMs = 1_000, maxDelayMs = 30_000 } = this.options;
    return Math.random() * Math.min(maxDelayMs, minDelayMs * 2 ** this.attempt);
  }

  private wait(reason: TelapiError, ms: number): void {
    this.attempt++;
    // The network's word is a hint: the service may be on this very machine.
    const retryInMs = Math.min(Math.round(this.networkGone ? (this.options.maxDelayMs ?? 30_000) : ms), maxTimer);
    this.retry = setTimeout(() => void this.open(), retryInMs);
    this.become({ state: this.networkGone ? "offline" : "waiting", retryInMs, reason });
  }

  private readonly surroundings = ({ type }: Event): void => {
    if (type === "offline") {
      this.networkGone = true;
      if (this.state === "waiting") this.become({ ...this.change, state: "offline" });
    } else if (type === "online") {
      this.networkGone = false;
      this.attempt = 0; // what failed without a network says nothing; an attempt that is under way is followed soon
      if (this.state === "offline" || this.state === "waiting") void this.open();
    }
    this.line?.probe(); // it may be of the network before, or have died while the page slept
  };

  private receive(message: ChannelMessage, raw: string): void {
    const { streamId, type } = message;
    const { turn } = this;
    const duplicate = streamId !== undefined && this.seen.has(streamId);
    this.events.emit("frame", { direction: "to_browser", message, raw, duplicate });
    if (duplicate || this.turn !== turn) return; // a listener left this line: what is not passed is sent again on the next
    const payload = (message[fieldOf(type)] ?? {}) as Payload;
    if (streamId) this.pass(streamId);
    else this.obey(message);
    if (type === "control" && /^(en|dis)able_text_chat$/.test(String(payload.command))) this.chat = payload.command === "enable_text_chat";
    this.events.emit(type, payload as never, message);
    this.events.emit("message", message);
  }

  /** Moves on to a message of the runtime. */
  private pass(streamId: string): void {
    this.at.streamId = streamId;
    this.seen.add(streamId);
    if (this.seen.size > remembered) this.seen.delete(this.seen.values().next().value!);
  }

  /** Does what the service itself says; the runtime's messages, which have a cursor, are none of the SDK's business. */
  private obey({ type, status, reconnect, error, timestamp }: ChannelMessage): void {
    if (type === "ping") this.transmit(this.frame("pong", uuid(), Date.now()));
    else if (type === "status" && status?.event === "ready") this.begin(status as unknown as Ready, timestamp);
    else if (type === "status" && status?.event === "ack") this.outbox.settle(String(status.messageId));
    else if (type === "reconnect" && !reconnect?.recovered) this.at.streamId = this.last!.streamId;
    else if (type === "error" && error && !transient.includes(String(error.code))) {
      this.outbox.settle(error.relatesTo, new TelapiError(String(error.code), String(error.message), { details: error.issues }));
    }
  }

  private begin(ready: Ready, serverTime: number): void {
    const { turn } = this;
    this.last = ready;
    this.readyAt = performance.now(); // which does not jump, as the time of day does
    this.chat = ready.textChat;
    // Where it asked to go on it asks again, until it was told what it has missed, or that this is not known.
    this.at = { streamId: ready.streamId, ...this.at, connectionId: ready.connectionId };
    this.expireIn(Date.parse(ready.expiresAt) - serverTime);
    this.line!.keepAlive(ready.pingIntervalMs, () => this.transmit(this.frame("ping", uuid(), Date.now())));
    this.outbox.maxBytes = ready.maxMessageBytes;
    this.events.emit("ready", ready);
    if (this.turn === turn) this.become({ state: "connected" });
    if (this.turn === turn) this.outbox.start(); // unless a listener left this line
  }

  private frame(type: MessageType, messageId: string, timestamp: number, body?: string): string {
    const envelope = JSON.stringify({ type, sessionId: this.sessionId, messageId, timestamp, direction: "to_ari" });
    return body ? `${envelope.slice(0, -1)},"${fieldOf(type)}":${body}}` : envelope;
  }

  private transmit(raw: string): void {
    this.line!.send(raw);
    if (this.events.has("frame")) this.events.emit("frame", { direction: "to_ari", message: JSON.parse(raw) as ChannelMessage, raw, duplicate: false });
  }

  private become(change: Omit<StateChange, "attempt">): void {
    this.change = { ...change, attempt: this.attempt };
    this.events.emit("state", this.change);
  }

  /** Ends the line and whatever was begun. */
  private hangUp(closeCode?: number): void {
    this.turn++;
    clearTimeout(this.retry);
    this.outbox.stop();
    this.line?.end(closeCode);
    this.line = undefined;
    this.readyAt = 0;
  }

  private end(reason: TelapiError, closeCode?: number): void {
    if (this.state === "ended") return;
    this.hangUp(closeCode);
    clearTimeout(this.expiry);
    for (const name of signs) globalThis.removeEventListener?.(name, this.surroundings);
    this.become({ state: "ended", reason });
    this.outbox.fail(reason);
    this.events.clear();
  }
}

/** JSON that the service takes: it refuses halves of surrogate pairs, which a cut-off string may end with; only they are escaped by their number. */
function wellFormed(payload: Payload): string {
  return JSON.stringify(payload)?.replace(/(\\\\)|\\ud[89a-f]../g, (_, backslash?: string) => backslash ?? "\ufffd");
}
