import { expect, test, vi } from "vitest";
import { type ChannelMessage, connect, type Frame, MAX_UNACKNOWLEDGED, type MessageType } from "../../src/index.js";
import { useFakeTimersAndRandom, open, openReady, ScriptedSocket, token } from "./script.js";

useFakeTimersAndRandom(0);

const texts = (socket: ScriptedSocket) => socket.sent.map((m) => m.chat?.text);

/** Loses the connection and opens the next one. The ready message has the given members. */
async function reconnect(ready: object = {}) {
  ScriptedSocket.latest.drop();
  await vi.advanceTimersByTimeAsync(1);
  ScriptedSocket.latest.ready(ready);
}

test("every message type emits an event with payload and envelope", async () => {
  const { session } = await openReady();
  const received: unknown[] = [];
  const fields: Record<MessageType, string> = {
    chat: "chat", browser_action: "browserAction", action: "action", action_result: "actionResult", audio: "audio", status: "status",
    control: "control", reconnect: "reconnect", error: "error", ping: "", pong: "",
  };
  for (const type of Object.keys(fields) as MessageType[]) {
    session.on(type, (payload: object, message: ChannelMessage) => received.push([type, payload, message.type]));
    ScriptedSocket.latest.deliver({ type, streamId: `s-${type}`, ...(fields[type] ? { [fields[type]]: { of: type } } : {}) });
    expect(received.pop()).toEqual([type, fields[type] ? { of: type } : {}, type]);
  }
});

test("a listener that throws or is removed does not affect the others", async () => {
  const { session } = await openReady();
  const uncaught = vi.spyOn(globalThis, "queueMicrotask").mockImplementation(() => {});
  const received = vi.fn();
  session.on("chat", () => {
    throw new Error("thrown by a listener");
  });
  const off = session.on("chat", received);
  ScriptedSocket.latest.deliver({ type: "chat", streamId: "s1", chat: {} });
  off();
  ScriptedSocket.latest.deliver({ type: "chat", streamId: "s2", chat: {} });
  expect(received).toHaveBeenCalledTimes(1);
  expect(uncaught).toHaveBeenCalledTimes(2);
  const late = vi.fn();
  session.on("chat", () => session.on("chat", late));
  ScriptedSocket.latest.deliver({ type: "chat", streamId: "s3", chat: {} });
  expect(late).not.toHaveBeenCalled(); // added during the event: called from the next one on
});

test.each(["ready", "state"] as const)("a listener can cut or dispose on %s", async (name) => {
  const { session, states } = await open();
  void session.send("chat", { text: "waits" });
  const on = (act: () => void) => session.on(name, () => (name === "ready" || session.state === "connected") && act());
  let off = on(() => session.cut());
  ScriptedSocket.latest.ready();
  expect([session.state, ScriptedSocket.latest.sent]).toEqual(["cut", []]);
  off();
  session.resume();
  off = on(() => {
    session.cut();
    session.resume();
  });
  ScriptedSocket.latest.ready();
  expect([session.state, ScriptedSocket.all.length, ScriptedSocket.latest.sent]).toEqual(["connecting", 3, []]);
  off();
  on(() => session.dispose());
  ScriptedSocket.latest.ready();
  expect([session.state, session.sendAudio({})]).toEqual(["ended", false]);
  await expect(session.send("chat", { text: "late" })).rejects.toMatchObject({ code: "DISPOSED" });
  expect(states.at(-1)!.state).toBe("ended");
});

test("send rejects types that are not acknowledged", async () => {
  const { session } = await openReady();
  for (const type of ["audio", "ping", "pong"]) {
    await expect(session.send(type as "chat", {})).rejects.toMatchObject({ code: "VALIDATION_ERROR", message: expect.stringContaining("sendAudio") });
  }
  expect(ScriptedSocket.latest.sent).toEqual([]);
});

test("a duplicate message is emitted once, and as a frame twice", async () => {
  const { session } = await open();
  const chat = vi.fn();
  const frames: Frame[] = [];
  session.on("chat", chat);
  session.on("frame", (frame) => frames.push(frame));
  ScriptedSocket.latest.ready();
  ScriptedSocket.latest.deliver({ type: "chat", streamId: "s1", chat: { text: "once" } });
  await reconnect();
  ScriptedSocket.latest.deliver({ type: "chat", streamId: "s1", chat: { text: "once" } });
  expect(chat).toHaveBeenCalledTimes(1);
  expect(frames.filter((f) => f.message.type === "chat").map((f) => f.duplicate)).toEqual([false, true]);
});

test("the memory of received messages is bounded", async () => {
  const { session } = await open();
  const chat = vi.fn();
  session.on("chat", chat);
  ScriptedSocket.latest.ready();
  for (let i = 0; i < 3_000; i++) ScriptedSocket.latest.deliver({ type: "chat", streamId: `m${i}`, chat: {} });
  for (const i of [2_999, 2_000, 1_000]) ScriptedSocket.latest.deliver({ type: "chat", streamId: `m${i}`, chat: {} });
  expect(chat).toHaveBeenCalledTimes(3_001);
});

test("it resumes after the last message and names the previous connection", async () => {
  const { session } = await open();
  const reconnects = vi.fn();
  session.on("reconnect", reconnects);
  ScriptedSocket.latest.ready();
  ScriptedSocket.latest.deliver({ type: "chat", streamId: "s7", chat: {} });
  expect(session.position).toEqual({ streamId: "s7", connectionId: "c1" });
  await reconnect({ streamId: "s20" });
  expect(Object.fromEntries(new URL(ScriptedSocket.latest.url).searchParams)).toEqual({ streamId: "s7", connectionId: "c1" });
  ScriptedSocket.latest.deliver({ type: "reconnect", reconnect: { recovered: false, count: 0 } });
  expect(reconnects.mock.calls[0]![0]).toEqual({ recovered: false, count: 0 });
  expect(session.position).toEqual({ streamId: "s20", connectionId: "c2" });
});

test("missing messages are reported even if the connection is lost before the report", async () => {
  const { session } = await open({ from: { streamId: "s7", connectionId: "c0" } });
  const query = () => Object.fromEntries(new URL(ScriptedSocket.latest.url).searchParams);
  ScriptedSocket.latest.ready({ streamId: "s20" }); // starts at the newest message; the reason follows
  await reconnect({ streamId: "s21" });
  expect(query()).toEqual({ streamId: "s7", connectionId: "c1" });
  ScriptedSocket.latest.deliver({ type: "reconnect", reconnect: { recovered: false, count: 0 } });
  await reconnect({ streamId: "s22" });
  expect(query()).toEqual({ streamId: "s21", connectionId: "c2" });
  ScriptedSocket.latest.deliver({ type: "chat", streamId: "s22", chat: {} });
  ScriptedSocket.latest.deliver({ type: "reconnect", reconnect: { recovered: true, count: 1 } });
  expect(session.position).toEqual({ streamId: "s22", connectionId: "c3" });
});

test("after a connection without a frame it resumes from the start", async () => {
  const { session } = await open();
  expect(ScriptedSocket.latest.url).not.toContain("streamId");
  ScriptedSocket.latest.onopen?.({});
  await reconnect();
  expect(ScriptedSocket.latest.url).toContain("?streamId=start");
  session.dispose();
  const other = await open();
  other.session.cut();
  other.session.resume();
  expect(ScriptedSocket.latest.url).toContain("?streamId=start");
  other.session.dispose();
});

test("unacknowledged messages are resent unchanged and in order", async () => {
  const { session } = await open();
  const early = session.send("chat", { text: "a" }); // before the first connection
  ScriptedSocket.latest.ready();
  const late = ["b", "c", "d"].map((text) => session.send("chat", { text }));
  const first = ScriptedSocket.latest;
  expect(texts(first)).toEqual(["a", "b", "c", "d"]);
  first.ack(first.sent[1]);
  await expect(late[0]).resolves.toBe(first.sent[1]!.messageId);
  first.drop();
  const e = session.send("chat", { text: "e" }); // while disconnected
  await vi.advanceTimersByTimeAsync(1);
  ScriptedSocket.latest.ready();
  const second = ScriptedSocket.latest;
  expect(texts(second)).toEqual(["a", "c", "d", "e"]);
  expect(second.sent.slice(0, 3)).toEqual([first.sent[0], first.sent[2], first.sent[3]]);
  for (const message of second.sent) second.ack(message);
  await Promise.all([early, ...late, e]);
  await reconnect();
  expect(texts(ScriptedSocket.latest)).toEqual([]);
});

test("the 257th unacknowledged message is rejected", async () => {
  const { session } = await open();
  const sent = Array.from({ length: MAX_UNACKNOWLEDGED }, (_, i) => session.send("chat", { text: String(i) }));
  await expect(session.send("chat", { text: "one too many" })).rejects.toMatchObject({ code: "OUTBOX_FULL" });
  session.dispose();
  const outcomes = await Promise.allSettled(sent);
  expect(new Set(outcomes.map((o) => (o as PromiseRejectedResult).reason.code))).toEqual(new Set(["DISPOSED"]));
});

test("it never exceeds the rate limit, even when resending", async () => {
  const { session } = await open({ token: { token: token(), wsUrl: "ws://service/ws/session", limits: { framesPerSecond: 60 } } });
  for (let i = 0; i < MAX_UNACKNOWLEDGED; i++) void session.send("chat", { text: String(i) });
  const socket = ScriptedSocket.latest;
  socket.ready();
  expect(socket.sent).toHaveLength(30); // no more until the first is acknowledged
  await vi.advanceTimersByTimeAsync(5_000);
  expect(socket.sent).toHaveLength(30);
  for (let i = 0; i < MAX_UNACKNOWLEDGED; i++) {
    while (!socket.sent[i]) await vi.advanceTimersByTimeAsync(1);
    socket.ack(socket.sent[i]);
  }
  expect(texts(socket)).toEqual(Array.from({ length: MAX_UNACKNOWLEDGED }, (_, i) => String(i)));
  // The rate limit of the service: a burst of 60 frames, and 60 more each second.
  let permits = 60;
  socket.sentAt.forEach((at, i, all) => {
    permits = Math.min(60, permits + ((at - (all[i - 1] ?? at)) * 60) / 1000) - 1;
    expect(permits).toBeGreaterThanOrEqual(10);
  });
  expect(socket.sentAt.at(-1)! - socket.sentAt[30]!).toBeLessThan(6_000);
});

test.each([
  ["TEXT_CHAT_DISABLED", "Text chat is disabled in this session."],
  ["BACKPRESSURE", "The runtime is far behind. Send this again in a moment."],
  ["VALIDATION_ERROR", "No."],
])("%s rejects its message and raises an error event", async (code, message) => {
  const { session } = await openReady();
  const errors = vi.fn();
  session.on("error", errors);
  const [a, b] = [session.send("chat", { text: "a" }), session.send("browser_action", { name: "click" })];
  const socket = ScriptedSocket.latest;
  const issues = [{ path: "/chat", message: "Why." }];
  socket.deliver({ type: "error", error: { code, message, fatal: false, relatesTo: socket.sent[0]!.messageId, issues } });
  socket.ack(socket.sent[1]);
  await expect(a).rejects.toMatchObject({ code, message, context: { details: issues } });
  await expect(b).resolves.toBe(socket.sent[1]!.messageId);
  expect(errors).toHaveBeenCalledTimes(1);
});

test("a messageId must be a UUID", async () => {
  const { session } = await openReady();
  await expect(session.send("chat", { text: "a" }, { messageId: "mine" })).rejects.toMatchObject({ code: "VALIDATION_ERROR" });
  expect(ScriptedSocket.latest.sent).toEqual([]);
  const messageId = "0A1B2C3D-0000-4000-8000-000000000001";
  const sent = session.send("chat", { text: "b" }, { messageId });
  ScriptedSocket.latest.ack(ScriptedSocket.latest.sent[0]);
  await expect(sent).resolves.toBe(messageId);
});

test("an error without relatesTo settles the oldest message", async () => {
  const { session } = await openReady();
  const sent = session.send("chat", { text: "a" });
  ScriptedSocket.latest.deliver({ type: "error", error: { code: "MALFORMED_JSON", message: "No." } });
  await expect(sent).rejects.toMatchObject({ code: "MALFORMED_JSON" });
});

test.each(["SERVICE_UNAVAILABLE", "INTERNAL_ERROR"])("a message is resent on the next connection after %s", async (code) => {
  const { session } = await openReady();
  const sent = session.send("chat", { text: "a" });
  const { messageId } = ScriptedSocket.latest.sent[0]!;
  ScriptedSocket.latest.deliver({ type: "error", error: { code, message: "Soon.", relatesTo: messageId } });
  ScriptedSocket.latest.drop(4005);
  await vi.advanceTimersByTimeAsync(1);
  ScriptedSocket.latest.ready();
  ScriptedSocket.latest.ack(ScriptedSocket.latest.sent[0]);
  await expect(sent).resolves.toBe(messageId);
});

test("acks and errors sent by the runtime settle nothing", async () => {
  const { session } = await openReady();
  const settled = vi.fn();
  session.send("chat", { text: "a" }).then(settled, settled);
  const { messageId } = ScriptedSocket.latest.sent[0]!;
  ScriptedSocket.latest.deliver({ type: "status", streamId: "s1", status: { event: "ack", messageId } });
  ScriptedSocket.latest.deliver({ type: "error", streamId: "s2", error: { code: "X", relatesTo: messageId } });
  await vi.advanceTimersByTimeAsync(0);
  expect(settled).not.toHaveBeenCalled();
});

test("an oversized message is rejected locally", async () => {
  const { session } = await open();
  ScriptedSocket.latest.ready({ maxMessageBytes: 1_000 });
  await expect(session.send("chat", { text: "ä".repeat(450) })).rejects.toMatchObject({ code: "MESSAGE_TOO_LARGE", message: expect.stringContaining("1000") });
  void session.send("chat", { text: "ä".repeat(300) });
  expect(ScriptedSocket.latest.sent).toHaveLength(1);
});

test("an unserializable payload rejects; a lone surrogate does not", async () => {
  const { session } = await openReady();
  const circular: Record<string, unknown> = {};
  circular.self = circular;
  await expect(session.send("action", circular)).rejects.toThrow(TypeError);
  void session.send("chat", { text: "👍 \ud83d \\ud83d", "\udc4d": ["\\\udc4d"] });
  expect(ScriptedSocket.latest.sent[0]!.chat).toEqual({ text: "👍 \ufffd \\ud83d", "\ufffd": ["\\\ufffd"] });
});

test("audio is sent immediately or dropped", async () => {
  const { session } = await open();
  expect(session.sendAudio({ data: "…" })).toBe(false);
  ScriptedSocket.latest.ready();
  expect(session.sendAudio({ data: "…" })).toBe(true);
  expect(() => session.sendAudio({ data: "A".repeat(70_000) })).toThrow(/70\d{3} bytes; 65536 are allowed/);
  expect(ScriptedSocket.latest.sent).toHaveLength(1);
  ScriptedSocket.latest.bufferedAmount = 100_000;
  expect(session.sendAudio({ data: "…" })).toBe(false);
  await reconnect();
  expect(ScriptedSocket.latest.sent).toHaveLength(0);
});

test("textChat follows the service and the runtime", async () => {
  const { session } = await open();
  ScriptedSocket.latest.ready({ textChat: false });
  expect(session.textChat).toBe(false);
  ScriptedSocket.latest.deliver({ type: "control", streamId: "s1", control: { command: "enable_text_chat" } });
  ScriptedSocket.latest.deliver({ type: "control", streamId: "s2", control: { command: "unknown_command" } });
  expect(session.textChat).toBe(true);
});

test("a ping is answered", async () => {
  await openReady();
  ScriptedSocket.latest.deliver({ type: "ping" });
  expect(ScriptedSocket.latest.sent).toMatchObject([{ type: "pong", sessionId: "ses_1", direction: "to_ari" }]);
});

test("whenReady settles on connection or end", async () => {
  const { session } = await open();
  const ready = session.whenReady();
  ScriptedSocket.latest.ready();
  await expect(ready).resolves.toMatchObject({ connectionId: "c1" });
  await expect(session.whenReady()).resolves.toMatchObject({ connectionId: "c1" });
  session.dispose();
  await expect(session.whenReady()).rejects.toMatchObject({ code: "DISPOSED" });
});

test("without a WebSocket the error explains how to pass one", () => {
  vi.stubGlobal("WebSocket", undefined);
  expect(() => connect({ token: token(), url: "ws://service" })).toThrow(/Pass one/);
});
