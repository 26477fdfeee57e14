import { afterEach, beforeEach, expect, vi } from "vitest";
import { connect, type ChannelMessage, type ConnectOptions, type Session, type StateChange } from "../../src/index.js";

/** The sessions of a test, which end with it. */
const sessions: Session[] = [];

/**
 * Gives every test of the file fake timers and a fixed Math.random. A test fails if timers remain: an ended session has
 * none.
 */
export function useFakeTimersAndRandom(random: number): void {
  beforeEach(() => void vi.useFakeTimers().spyOn(Math, "random").mockReturnValue(random));
  afterEach(() => {
    for (const session of sessions.splice(0)) session.dispose();
    expect(vi.getTimerCount()).toBe(0);
    vi.restoreAllMocks();
    vi.unstubAllGlobals();
    vi.useRealTimers();
  });
}

/** Replaces fetch with one that always returns this response. */
export function stubFetch(status: number, body: unknown, headers = {}) {
  const fetch = vi.fn((_url: string, _init?: RequestInit) => Promise.resolve(new Response(typeof body === "string" ? body : JSON.stringify(body), { status, headers })));
  vi.stubGlobal("fetch", fetch);
  return fetch;
}

/** A WebSocket that the test controls. */
export class ScriptedSocket {
  static all: ScriptedSocket[] = [];
  static get latest(): ScriptedSocket {
    return ScriptedSocket.all.at(-1)!;
  }

  onopen: ((event: object) => void) | null = null;
  onmessage: ((event: { data: string }) => void) | null = null;
  onclose: ((event: { code: number; reason: string }) => void) | null = null;
  onerror: ((event: object) => void) | null = null;
  bufferedAmount = 0;
  sent: ChannelMessage[] = [];
  sentAt: number[] = []; // the time of each message in sent
  closedWith: number | undefined | null = null; // close code; undefined: closed without a code; null: open

  constructor(
    readonly url: string,
    readonly protocols: string[],
  ) {
    ScriptedSocket.all.push(this);
  }

  send(frame: string): void {
    this.sentAt.push(Date.now());
    this.sent.push(JSON.parse(frame) as ChannelMessage);
  }

  close(code?: number): void {
    this.closedWith = code;
  }

  /** Delivers a message from the service. */
  deliver(message: Partial<ChannelMessage>): void {
    this.onmessage?.({ data: JSON.stringify({ sessionId: "ses_1", messageId: "m", timestamp: Date.now(), direction: "to_browser", ...message }) });
  }

  /** Completes the handshake and delivers the ready message, with the given members replaced. */
  ready(overrides: object = {}): void {
    this.onopen?.({});
    this.deliver({
      type: "status",
      status: {
        event: "ready", connectionId: `c${ScriptedSocket.all.length}`, streamId: "s0", resumed: false, pingIntervalMs: 25_000,
        maxMessageBytes: 65_536, textChat: true, expiresAt: new Date(Date.now() + 3_600_000).toISOString(), reconnectJitterMs: 5_000, ...overrides,
      },
    });
  }

  /** Acknowledges a message of the page. */
  ack(message: ChannelMessage | undefined): void {
    this.deliver({ type: "status", status: { event: "ack", messageId: message!.messageId } });
  }

  /** Closes the connection from the side of the service. */
  drop(code = 1006, reason = ""): void {
    this.onclose?.({ code, reason });
  }
}

/** A call token with the claims that the SDK reads. */
export function token(lifetimeSeconds = 3_600, sub = "ses_1"): string {
  const claims = { sub, iat: 1_000, exp: 1_000 + lifetimeSeconds, more: "???????>>>>>>>" }; // contains - and _ in base64url
  return `e30.${Buffer.from(JSON.stringify(claims)).toString("base64url")}.sig`;
}

export interface Scripted {
  session: Session;
  states: StateChange[];
}

/** Opens a session on scripted sockets. The first one exists when this resolves. */
export async function open(options: Partial<ConnectOptions> = {}): Promise<Scripted> {
  ScriptedSocket.all = [];
  const session = connect({ token: token(), url: "ws://service/ws/session", WebSocket: ScriptedSocket, ...options } as ConnectOptions);
  sessions.push(session);
  const states: StateChange[] = [];
  session.on("state", (change) => states.push(change));
  await vi.advanceTimersByTimeAsync(0);
  return { session, states };
}

/** Opens a session whose first socket is ready. */
export async function openReady(options: Partial<ConnectOptions> = {}): Promise<Scripted> {
  const opened = await open(options);
  ScriptedSocket.latest.ready();
  return opened;
}
