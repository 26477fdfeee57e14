import { afterEach, beforeEach, expect, vi } from "vitest";
import { connect, type ChannelMessage, type ConnectOptions, type Session, type StateChange } from "../../src/index.js";

/** Every test of the file has timers and chance of its own, and leaves no timers: an ended session has none. */
export function atATimeOfItsOwn(chance: number): void {
  beforeEach(() => void vi.useFakeTimers().spyOn(Math, "random").mockReturnValue(chance));
  afterEach(() => {
    expect(vi.getTimerCount()).toBe(0);
    vi.restoreAllMocks();
    vi.unstubAllGlobals();
    vi.useRealTimers();
  });
}

/** What fetch is answered from now on. */
export function answer(status: number, body: unknown, headers = {}) {
  const fetch = vi.fn((_url: string, _init?: RequestInit) => Promise.resolve(new Response(typeof body === "string" ? body : JSON.stringify(body), { status, headers })));
  vi.stubGlobal("fetch", fetch);
  return fetch;
}

/** A WebSocket whose other end is the test. */
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
  sentAt: number[] = [];
  closedWith: number | undefined | null = null;

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

  /** The service says something. */
  say(message: Partial<ChannelMessage>): void {
    this.onmessage?.({ data: JSON.stringify({ sessionId: "ses_1", messageId: "m", timestamp: Date.now(), direction: "to_browser", ...message }) });
  }

  /** The handshake goes through and the connection begins. */
  ready(more: object = {}): void {
    this.onopen?.({});
    this.say({
      type: "status",
      status: {
        event: "ready", connectionId: `c${ScriptedSocket.all.length}`, streamId: "s0", resumed: false, pingIntervalMs: 25_000,
        maxMessageBytes: 65_536, textChat: true, expiresAt: new Date(Date.now() + 3_600_000).toISOString(), reconnectJitterMs: 5_000, ...more,
      },
    });
  }

  ack(message: ChannelMessage | undefined): void {
    this.say({ type: "status", status: { event: "ack", messageId: message!.messageId } });
  }

  /** The line goes down. */
  drop(code = 1006, reason = ""): void {
    this.onclose?.({ code, reason });
  }
}

/** A call token as far as the SDK looks into it. */
export function token(lifetimeSeconds = 3_600, sub = "ses_1"): string {
  const claims = { sub, iat: 1_000, exp: 1_000 + lifetimeSeconds, more: "???????>>>>>>>" }; // in base64url - and _
  return `e30.${Buffer.from(JSON.stringify(claims)).toString("base64url")}.sig`;
}

export interface Scripted {
  session: Session;
  states: StateChange[];
}

/** Opens a session on scripted sockets; the first one is there when this returns. */
export async function open(options: Partial<ConnectOptions> = {}): Promise<Scripted> {
  ScriptedSocket.all = [];
  const session = connect({ token: token(), url: "ws://service/ws/session", WebSocket: ScriptedSocket, ...options } as ConnectOptions);
  const states: StateChange[] = [];
  session.on("state", (change) => states.push(change));
  await vi.advanceTimersByTimeAsync(0);
  return { session, states };
}
