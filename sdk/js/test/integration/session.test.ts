import { afterAll, beforeAll, expect, test, vi } from "vitest";
import { WebSocket } from "ws";
import { type ConnectOptions, connect, type Rejection, type Session, type State, type TelapiError } from "../../src/index.js";
import { Proxy } from "./proxy.js";
import { Service } from "./service.js";

let service: Service;
const sessions: Session[] = [];
beforeAll(async () => {
  service = await Service.start();
});
afterAll(async () => {
  for (const session of sessions) session.dispose();
  await service[Symbol.asyncDispose]();
});

function open(options: Partial<ConnectOptions> = {}): Session & { received: string[]; states: State[] } {
  const session = connect({ ...("token" in options ? {} : { issue: () => service.issue() }), WebSocket, minDelayMs: 20, maxDelayMs: 200, ...options } as ConnectOptions);
  sessions.push(session);
  const received: string[] = [];
  const states: State[] = [];
  session.on("chat", ({ text }) => received.push(text!));
  session.on("state", ({ state }) => states.push(state));
  return Object.assign(session, { received, states });
}

const until = (check: () => void) => vi.waitFor(check, { timeout: 60_000, interval: 20 });
const ended = (session: Session) => until(() => expect(session.state).toBe("ended")).then(() => session.reason!);
const numbers = (n: number) => Array.from({ length: n }, (_, i) => String(i));

test("chat, audio and other messages reach the runtime and the browser", async () => {
  const session = open({ issue: () => service.issue({ mode: "audio" }) });
  const ready = await session.whenReady();
  expect(ready).toMatchObject({ resumed: false, textChat: true });
  const id = await session.send("chat", { text: "Good day 👋" });
  expect(id).toMatch(/^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
  const results: unknown[] = [];
  session.on("action_result", (payload) => results.push(payload));
  await session.send("action_result", { ok: true });
  await until(() => expect([session.received, results]).toEqual([["Good day 👋"], [{ ok: true }]]));
  const audio: unknown[] = [];
  session.on("audio", (payload) => audio.push(payload));
  expect(session.sendAudio({ data: "AAAA" })).toBe(true);
  await until(() => expect(audio).toEqual([{ data: "AAAA" }]));
});

test("random disconnects lose, duplicate and reorder nothing", async () => {
  using network = await Proxy.to(service.url);
  const session = open({ url: network.url });
  const sent = new Map<string, number>(); // how often each message was sent
  const cutAfter = new Set([20, 60, 100]); // messages
  session.on("frame", ({ direction, message: { type, messageId } }) => {
    if (direction !== "to_ari" || type !== "chat") return;
    sent.set(messageId, (sent.get(messageId) ?? 0) + 1);
    if (cutAfter.delete(sent.size)) network.cut(); // before the acknowledgement
  });
  let cutsLeft = 30; // so that the test ends on a slow machine too
  let timer = setTimeout(function cut() {
    network.cut();
    if (--cutsLeft) timer = setTimeout(cut, 5 + Math.random() * 200);
  }, 5);
  await Promise.all([...numbers(120).map((text) => session.send("chat", { text })), session.send("chat", { text: "/count 100" })]);
  await until(() => expect(session.received).toHaveLength(220));
  clearTimeout(timer);
  await session.send("chat", { text: "the end" });
  await until(() => expect(session.received.at(-1)).toBe("the end"));
  expect(session.received).toEqual([...numbers(120), ...numbers(100), "the end"]);
  expect(network.connections).toBeGreaterThan(3);
  expect(Math.max(...sent.values())).toBeGreaterThan(1);
});

test("a connection lost before its first frame does not lose the greeting", async () => {
  const token = await service.issue();
  const urls: string[] = [];
  class LosesFirstConnection extends WebSocket {
    constructor(url: string, protocols: string[]) {
      super(url, protocols);
      if (urls.push(url) > 1) return;
      Object.defineProperty(this, "onmessage", { set() {} }); // the greeting may arrive in one packet with the response to the handshake
      this.prependOnceListener("open", () => this.terminate());
    }
  }
  await service.telapi("channel", "open", token.sessionId, "--team", service.team, "--endpoint", service.endpointId);
  await service.telapi("channel", "send", token.sessionId, "--type", "chat", "--payload", '{"text":"welcome"}');
  const session = open({ token, WebSocket: LosesFirstConnection } as Partial<ConnectOptions>);
  await until(() => expect(session.received).toEqual(["welcome"]));
  expect(urls).toHaveLength(2);
});

test("a page resumes after a reload", async () => {
  const token = await service.issue();
  const before = open({ token } as ConnectOptions);
  await before.whenReady();
  await before.send("chat", { text: "before" });
  await until(() => expect(before.received).toEqual(["before"]));
  const from = before.position!;
  before.dispose();
  await service.telapi("channel", "send", token.sessionId, "--type", "chat", "--payload", '{"text":"in between"}');
  const after = open({ token, from } as ConnectOptions);
  await until(() => expect(after.received).toEqual(["in between"]));
});

test("the session resumes without loss after a restart", async () => {
  const session = open();
  const closes: unknown[] = [];
  session.on("state", ({ state, reason }) => state === "waiting" && closes.push(reason?.context.closeCode ?? reason?.code));
  await session.whenReady();
  await session.send("chat", { text: "before" });
  const restarted = service.restart();
  await until(() => expect(session.state).not.toBe("connected"));
  const meanwhile = session.send("chat", { text: "meanwhile" });
  await restarted;
  await meanwhile;
  await session.send("chat", { text: "after" });
  await until(() => expect(session.received).toEqual(["before", "meanwhile", "after"]));
  expect(closes[0]).toBe(1012);
});

test("a deleted session is rejected with the service's message", async () => {
  const token = await service.issue();
  const first = open({ token } as ConnectOptions);
  await first.whenReady();
  await service.api("DELETE", `/api/v1/sessions/${token.sessionId}`);
  expect(await ended(first)).toMatchObject({ code: "SESSION_ENDED" });
  const second = open({ token } as ConnectOptions);
  const rejected: Rejection[] = [];
  second.on("rejected", (rejection) => rejected.push(rejection));
  const reason: TelapiError = await ended(second);
  expect(reason).toMatchObject({ code: "SESSION_ENDED", context: { status: 410, requestId: expect.any(String) } });
  expect(reason.message).toMatch(/[a-z]+ .*\.$/);
  expect(rejected).toMatchObject([{ final: true, error: reason }]);
});
