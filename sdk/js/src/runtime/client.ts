import { Emitter } from "../emitter.js";
import { TelapiError } from "../errors.js";
import type { StateChange } from "../events.js";
import { encode } from "../messages.js";
import type { Rejection } from "../rejection.js";
import { Channel } from "./channel.js";
import { closeMalformed, Link } from "./link.js";
import type { Claimed, Frame, RuntimeEvents, RuntimeOptions, Welcome, WireError } from "./types.js";

/** A connection without any frame or ping for this many ping intervals is lost. */
const maxSilence = 2.5;
/** Audio is dropped while this many bytes are buffered: late speech is worse than none. */
const maxBufferedAudio = 262_144;
/** Maximum number of unanswered requests of a channel. */
const maxRequests = 256;
/** The code of an error that goes away by itself. */
const unavailable = "SERVICE_UNAVAILABLE";
/** The maximum delay of setTimeout; larger values fire immediately. */
const maxTimer = 2 ** 31 - 1;

/** A request without an answer. */
interface PendingRequest {
  readonly id: number;
  readonly op: string;
  readonly channel: Channel | undefined;
  readonly number: number; // of the entry that a commit names, else 0
  readonly frame: string; // the same on every connection
  resolve(reply: object): void;
  reject(error: TelapiError): void;
}

/** The connections, unanswered requests and claimed channels of a runtime. */
export class Client {
  readonly events = new Emitter<RuntimeEvents>();
  readonly channels = new Map<string, Channel>();
  change: StateChange = { state: "connecting", attempt: 0 };
  private readonly url: URL;
  private readonly headers: Record<string, string>;
  private readonly pending = new Map<number, PendingRequest>(); // oldest first
  /** Channels, and requests without one, that the service cannot serve now. */
  private readonly stalls = new Map<Channel | PendingRequest, ReturnType<typeof setTimeout>>();
  private lastId = 0;
  private opening: Link | undefined; // until hello is sent
  private link: Link | undefined; // since hello was sent
  private retired: Link | undefined; // the predecessor of link, until hello is answered
  private helloId = 0;
  private previous: string | undefined; // the last connection
  private welcome: Welcome | undefined; // the answer to hello
  private drained = ""; // the instance that announced its shutdown last
  private closeError: TelapiError | undefined; // why the service closes the connection
  private attempt = 0; // failed attempts since the last connection
  private retry: ReturnType<typeof setTimeout> | undefined;

  constructor(private readonly options: RuntimeOptions) {
    const { url, key, name } = options;
    if (!key || !name) throw new TelapiError("VALIDATION_ERROR", "The options key and name are required.");
    if (!URL.canParse(url)) throw new TelapiError("BAD_URL", `Invalid url "${url}". Pass the service's URL, such as http://localhost:3001.`);
    this.url = new URL(url);
    this.url.protocol = this.url.protocol.replace("http", "ws");
    this.url.pathname = this.url.pathname.replace(/\/*(ws\/runtime)?$/, "/ws/runtime");
    this.headers = key.split(".").length === 3 ? { Authorization: `Bearer ${key}` } : { "X-API-Key": key };
    this.open();
  }

  /**
   * Sends a request, and again until it is answered: on each new connection, and while the service is unavailable. The reply
   * passes through `receive` before any later frame is handled. A commit names the number of its entry.
   */
  request<Reply extends object, Result = void>(op: string, members: object, receive?: (reply: Reply) => Result, channel?: Channel, number = 0): Promise<Result> {
    const answered = new Promise<Result>((resolve, reject) => {
      const reason = channel?.closed ?? (this.change.state === "ended" && this.change.reason);
      if (reason) throw reason;
      if (channel && !number && channel.requests >= maxRequests) throw new TelapiError("OUTBOX_FULL", `${maxRequests} requests are not answered yet. Send this one later.`);
      const id = ++this.lastId;
      const frame = encode({ id, op, channel: channel?.id, claim: channel?.claim, ...members });
      const maxBytes = this.welcome?.limits?.frameBytes ?? 1 << 20;
      // The service would close the connection, for all channels.
      if (Buffer.byteLength(frame) > maxBytes) throw new TelapiError("PAYLOAD_TOO_LARGE", `The request has ${Buffer.byteLength(frame)} bytes; ${maxBytes} are allowed.`);
      const request = { id, op, channel, number, frame, reject, resolve: (reply: object) => resolve(receive?.(reply as Reply) as Result) };
      this.pending.set(id, request);
      if (channel && !number) channel.requests++; // the service bounds commits: it waits for them
      this.transmit(request);
    });
    answered.catch(() => {}); // a caller who does not wait must not crash: the channel tells about failures, too
    return answered;
  }

  /** Claims a channel by accept or open. */
  claim(op: string, members: object): Promise<Channel> {
    return this.request(op, members, (claimed: Claimed) => {
      const known = this.channels.get(claimed.channel);
      if (known?.claim === claimed.claim) return known;
      if (known) this.remove(known, claimLost());
      const channel = new Channel(this, claimed);
      this.channels.set(channel.id, channel);
      return channel;
    });
  }

  /** Sends audio. Returns false if it was dropped. */
  sendAudio(channel: Channel, message: object): boolean {
    if (!this.welcome || this.link!.bufferedAmount > maxBufferedAudio) return false;
    this.link!.send(encode({ op: "audio", channel: channel.id, claim: channel.claim, message }));
    return true;
  }

  /** Removes a channel that has ended, was released, or is lost if there is an error. */
  remove(channel: Channel, error?: TelapiError): void {
    if (this.channels.get(channel.id) === channel) this.channels.delete(channel.id);
    clearTimeout(this.stalls.get(channel));
    this.stalls.delete(channel);
    // Without a claim, the service cannot tell any more that it has released the channel, or taken the last commit.
    const requests = this.requestsOf(channel);
    const ended = requests.some(({ number }) => number >= channel.endNumber);
    channel.close(ended ? undefined : error);
    for (const request of requests) this.settle(request, request.op === "release" || request.number >= channel.endNumber ? {} : channel.closed!);
  }

  /** Ends the runtime. */
  end(reason: TelapiError): void {
    if (this.change.state === "ended") return;
    for (const timer of [this.retry, ...this.stalls.values()]) clearTimeout(timer);
    for (const link of [this.opening, this.retired, this.link]) link?.close(1000);
    this.opening = this.retired = this.link = this.welcome = undefined;
    this.setState({ state: "ended", reason });
    for (const channel of [...this.channels.values()]) this.remove(channel, reason);
    for (const request of [...this.pending.values()]) this.settle(request, reason);
    this.events.clear();
  }

  private open(): void {
    const link: Link = new Link(this.url, this.headers, this.options.connectTimeoutMs ?? 10_000, {
      open: () => this.hello(link),
      frame: (frame) => this.link === link && this.receive(frame),
      lost: (closeCode, error, rejection) => this.lost(link, closeCode, error, rejection),
    });
    this.opening = link;
    if (!this.link) this.setState({ state: "connecting" });
  }

  /** Makes an open connection the current one. Frames of its predecessor are ignored from now on: the service repeats what is missing. */
  private hello(link: Link): void {
    this.retired = this.link;
    this.link = link;
    this.opening = this.welcome = this.closeError = undefined;
    this.helloId = ++this.lastId;
    const { name, resumeMs } = this.options;
    link.send(encode({ id: this.helloId, op: "hello", name, resumeMs, previous: this.previous, resume: [...this.channels.values()].map((channel) => channel.resume()) }));
  }

  private handleWelcome(welcome: Welcome): void {
    this.retired?.close(1000);
    this.retired = undefined;
    this.link!.keepAlive(maxSilence * welcome.pingIntervalMs);
    const resumed = new Map(welcome.resumed.map((channel) => [channel.channel, channel]));
    for (const channel of [...this.channels.values()]) {
      const state = resumed.get(channel.id);
      if (!state) this.remove(channel, claimLost());
      else channel.resumed(state);
    }
    this.welcome = welcome;
    this.previous = welcome.connection;
    for (const timer of this.stalls.values()) clearTimeout(timer);
    this.stalls.clear();
    for (const request of this.pending.values()) this.transmit(request);
    this.setState({ state: "connected" });
  }

  private lost(link: Link, closeCode: number, error: TelapiError, rejection?: Partial<Rejection>): void {
    if (link === this.opening) this.opening = undefined;
    else if (link !== this.link) return;
    const final = rejection?.final ? error : TelapiError.ofCloseCode(closeCode, error.message);
    const reason = (link === this.link && this.closeError) || final || error;
    if (final) return this.end(reason);
    if (link === this.link) {
      if (this.welcome && closeCode !== closeMalformed) this.attempt = 0;
      this.retired?.close();
      this.link = this.retired = this.welcome = undefined;
    }
    if (this.link || this.opening) return; // an instance shuts down, and one of two connections is left
    const { minDelayMs = 250, maxDelayMs = 10_000 } = this.options;
    const delay = Math.random() * Math.min(maxDelayMs, minDelayMs * 2 ** this.attempt++);
    const retryInMs = Math.min(Math.round(delay + (rejection?.retryAfterMs ?? 0)), maxTimer);
    this.retry = setTimeout(() => this.open(), retryInMs);
    this.setState({ state: "waiting", retryInMs, reason });
  }

  /** Handles a frame. Throws if it is malformed: the connection is closed, and the service repeats the entries on the next one. */
  private receive(frame: Frame): void {
    if (typeof frame.event === "string") return this.handlePush(frame);
    const error = frame.error && toError(frame.error);
    if (typeof frame.id !== "number" || (!error && typeof frame.ok !== "object")) throw new Error("The service sent a malformed frame.");
    if (frame.id === this.helloId) return error ? this.rejectHello(error) : this.handleWelcome(frame.ok as unknown as Welcome);
    const request = this.pending.get(frame.id);
    if (!request) return; // settled without a reply
    if (error?.code === unavailable) return this.stall(request, retryAfterMs(error));
    this.settle(request, error ?? frame.ok!);
    if (!error && request.op === "commit") request.channel!.committed(request.number);
    if (!error && request.op === "release") this.remove(request.channel!);
  }

  private handlePush({ event, channel: id = "", position, entry, workItem, message, at, claim, error }: Frame): void {
    const channel = this.channels.get(id);
    if (event === "drain") this.leave(this.welcome?.instance ?? "");
    else if (event === "error") this.closeError = toError(error!);
    else if (!channel) return; // it was released
    else if (event === "audio") channel.receiveAudio(message!);
    else if (event === "lost") channel.lost(at!);
    else if (event === "claim_lost" && channel.claim === claim) this.remove(channel, claimLost());
    else if (event === "entry") channel.push(position!, entry!, workItem);
  }

  /** Opens a connection to another instance. There is one attempt: a balancer may lead to the same instance until it has closed this connection. */
  private leave(instance: string): void {
    if (this.opening || this.drained === instance) return;
    this.drained = instance;
    this.open();
  }

  private rejectHello(error: TelapiError): void {
    this.link!.close();
    this.lost(this.link!, 1006, error, { final: error.code !== unavailable, retryAfterMs: retryAfterMs(error) });
  }

  /** Sends a request, unless there is no connection or it has to wait for an earlier one of its channel. */
  private transmit(request: PendingRequest, retry = false): void {
    if (!this.welcome || this.stalls.has(request.channel ?? request)) return;
    this.link!.send(retry ? request.frame.replace("{", '{"retry":true,') : request.frame);
  }

  /** Repeats a request after a delay, and after it all others of the channel, so that none overtakes another. */
  private stall(request: PendingRequest, ms: number): void {
    const { channel } = request;
    const stalled = channel ?? request;
    if (this.stalls.has(stalled)) return;
    const repeat = () => {
      this.stalls.delete(stalled);
      for (const [i, each] of (channel ? this.requestsOf(channel) : [request]).entries()) this.transmit(each, !!channel && i === 0);
    };
    this.stalls.set(stalled, setTimeout(repeat, ms));
  }

  /** Answers a request. It stays pending if the reply is malformed. */
  private settle(request: PendingRequest, reply: object | TelapiError): void {
    if (reply instanceof TelapiError) request.reject(reply);
    else request.resolve(reply);
    this.pending.delete(request.id);
    if (request.channel && !request.number) request.channel.requests--;
  }

  /** Resolves the commits of entries that the service has lost. */
  dropCommits(channel: Channel): void {
    for (const request of this.requestsOf(channel)) if (request.op === "commit") this.settle(request, {});
  }

  private requestsOf(channel: Channel): PendingRequest[] {
    return [...this.pending.values()].filter((request) => request.channel === channel);
  }

  private setState(change: Omit<StateChange, "attempt">): void {
    this.change = { ...change, attempt: this.attempt };
    this.events.emit("state", this.change);
  }
}

/** The delay that the service asks for. */
function retryAfterMs({ context }: TelapiError): number {
  return Number((context.details as { retryAfterMs?: number } | undefined)?.retryAfterMs) || 1_000;
}

function toError({ code, message, details }: WireError): TelapiError {
  return new TelapiError(String(code), String(message), { details });
}

function claimLost(): TelapiError {
  return new TelapiError("CLAIM_LOST", "The channel no longer belongs to this runtime. Another one continues it.");
}
