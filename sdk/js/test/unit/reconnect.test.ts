import { describe, expect, test, vi } from "vitest";
import { stubFetch, useFakeTimersAndRandom, open, openReady, ScriptedSocket, token } from "./script.js";

useFakeTimersAndRandom(0.999999);

/** Replaces the page's event target. `registered` has the names of the events with listeners. */
function stubPageEvents() {
  const events = Object.assign(new EventTarget(), { registered: [] as string[] });
  vi.stubGlobal("addEventListener", (name: string, listener: EventListener) => {
    events.registered.push(name);
    events.addEventListener(name, listener);
  });
  vi.stubGlobal("removeEventListener", (name: string, listener: EventListener) => {
    events.registered.splice(events.registered.indexOf(name), 1);
    events.removeEventListener(name, listener);
  });
  return events;
}

test("the token is sent as a subprotocol and never in the URL", async () => {
  await open();
  expect(ScriptedSocket.latest.protocols).toEqual(["telapi.v1", `telapi.bearer.${token()}`]);
  expect(ScriptedSocket.latest.url).toBe("ws://service/ws/session");
});

describe("close codes", () => {
  test.each([1000, 1001, 1005, 1006, 1011, 1012, 4000, 4001, 4002, 4003, 4004, 4005, 4499])("reconnects after %i", async (code) => {
    const { session } = await openReady();
    ScriptedSocket.latest.drop(code, "why");
    expect(session.state).toBe("waiting");
    expect(session.reason?.context.closeCode).toBe(code);
    await vi.advanceTimersByTimeAsync(5_000);
    expect(ScriptedSocket.all).toHaveLength(2);
  });

  test.each([
    [1007, "BAD_FRAMES"], [1008, "REJECTED"], [1009, "MESSAGE_TOO_LARGE"], [4500, "UNAUTHORIZED"], [4501, "BAD_FRAMES"],
    [4502, "SESSION_REPLACED"], [4503, "SESSION_ENDED"], [4504, "SESSION_EXPIRED"], [4999, "REJECTED"],
  ])("does not reconnect after %i: %s", async (code, name) => {
    const { session, states } = await openReady();
    const sent = session.send("chat", { text: "unacknowledged" });
    ScriptedSocket.latest.drop(code, "why");
    await expect(sent).rejects.toMatchObject({ name: "TelapiError", code: name, context: { closeCode: code } });
    expect(states.at(-1)).toMatchObject({ state: "ended", reason: { code: name, message: code === 4999 ? "why" : expect.stringMatching(/^[A-Z].*\.$/) } });
    await expect(session.send("chat", { text: "late" })).rejects.toMatchObject({ code: name });
    await vi.advanceTimersByTimeAsync(120_000);
    expect(ScriptedSocket.all).toHaveLength(1);
  });
});

describe("replaced by a handshake of this page that failed", () => {
  async function reconnectAfterFailedHandshake() {
    stubFetch(426, {});
    const opened = await open();
    ScriptedSocket.latest.drop();
    await vi.advanceTimersByTimeAsync(5_000);
    ScriptedSocket.latest.ready({ pingIntervalMs: 120_000 });
    return opened;
  }

  test("reconnects", async () => {
    const { session } = await reconnectAfterFailedHandshake();
    ScriptedSocket.latest.drop(4502);
    expect(session.state).toBe("waiting");
    await vi.advanceTimersByTimeAsync(5_000);
    expect(ScriptedSocket.all).toHaveLength(3);
  });

  test("ends if the handshake failed a minute ago", async () => {
    const { session } = await reconnectAfterFailedHandshake();
    await vi.advanceTimersByTimeAsync(60_000);
    ScriptedSocket.latest.drop(4502);
    expect(session.reason?.code).toBe("SESSION_REPLACED");
  });

  test("ends if every handshake succeeded", async () => {
    const { session } = await openReady();
    ScriptedSocket.latest.drop(1006);
    await vi.advanceTimersByTimeAsync(5_000);
    ScriptedSocket.latest.ready();
    ScriptedSocket.latest.drop(4502);
    expect(session.reason?.code).toBe("SESSION_REPLACED");
  });
});

describe("back-off", () => {
  test("delays are random, double up to the maximum, and reset after a stable connection", async () => {
    stubFetch(426, {});
    const { states } = await open({ minDelayMs: 1_000, maxDelayMs: 6_000 });
    for (let i = 0; i < 5; i++) {
      ScriptedSocket.latest.drop();
      await vi.advanceTimersByTimeAsync(6_000);
    }
    const waits = () => states.flatMap((s) => (s.state === "waiting" ? [s.retryInMs] : []));
    expect(waits()).toEqual([1_000, 2_000, 4_000, 6_000, 6_000]);
    ScriptedSocket.latest.ready();
    await vi.advanceTimersByTimeAsync(4_000);
    ScriptedSocket.latest.drop(4005);
    expect(waits().at(-1)).toBe(6_000); // the connection was not stable
    await vi.advanceTimersByTimeAsync(6_000);
    ScriptedSocket.latest.ready();
    await vi.advanceTimersByTimeAsync(6_000);
    vi.mocked(Math.random).mockReturnValue(0.25);
    ScriptedSocket.latest.drop();
    expect(waits().at(-1)).toBe(250);
  });

  test("after a restart it reconnects within the service's jitter window", async () => {
    const { states } = await open();
    ScriptedSocket.latest.ready({ reconnectJitterMs: 8_000 });
    vi.mocked(Math.random).mockReturnValue(0.5);
    ScriptedSocket.latest.drop(1012);
    expect(states.at(-1)).toMatchObject({ state: "waiting", retryInMs: 4_000 });
  });

  test.each([-3_600_000, 3_600_000])("a clock jump of %i ms does not change whether a connection counts as stable", async (jump) => {
    const { states } = await open({ minDelayMs: 1_000, maxDelayMs: 8_000 });
    for (const lasted of [0, 6_000]) {
      ScriptedSocket.latest.ready();
      await vi.advanceTimersByTimeAsync(lasted);
      vi.setSystemTime(Date.now() + jump);
      ScriptedSocket.latest.drop();
      expect(states.at(-1)).toMatchObject({ attempt: 1, retryInMs: 1_000 });
      await vi.advanceTimersByTimeAsync(1_000);
    }
    ScriptedSocket.latest.ready();
    vi.setSystemTime(Date.now() + jump);
    ScriptedSocket.latest.drop();
    expect(states.at(-1)).toMatchObject({ attempt: 2, retryInMs: 2_000 });
  });

  test("the session expires independently of the local clock", async () => {
    vi.setSystemTime(0);
    const { session } = await open();
    const serverTime = 1_900_000_000_000;
    ScriptedSocket.latest.onopen?.({});
    ScriptedSocket.latest.deliver({
      type: "status", timestamp: serverTime,
      status: { event: "ready", connectionId: "c", streamId: "s", pingIntervalMs: 25_000, expiresAt: new Date(serverTime + 60_000).toISOString() },
    });
    session.cut();
    await vi.advanceTimersByTimeAsync(60_000);
    expect(session.state).toBe("cut");
    await vi.advanceTimersByTimeAsync(2_000);
    expect(session.reason?.code).toBe("SESSION_EXPIRED");
  });

  test("the session expires with its token if the service was never reached", async () => {
    const { session } = await open({ token: token(60) });
    session.cut();
    await vi.advanceTimersByTimeAsync(60_000);
    expect(session.state).toBe("cut");
    await vi.advanceTimersByTimeAsync(2_000);
    expect(session.reason?.code).toBe("SESSION_EXPIRED");
  });

  test("it waits while offline and reconnects when online", async () => {
    const events = stubPageEvents();
    const { session, states } = await openReady();
    events.dispatchEvent(new Event("offline"));
    ScriptedSocket.latest.drop();
    expect(states.at(-1)).toMatchObject({ state: "offline", retryInMs: 30_000 });
    events.dispatchEvent(new Event("online"));
    ScriptedSocket.latest.ready();
    ScriptedSocket.latest.drop();
    events.dispatchEvent(new Event("offline"));
    expect(session.state).toBe("offline");
    events.dispatchEvent(new Event("online"));
    await vi.advanceTimersByTimeAsync(0);
    expect(session.state).toBe("connecting");
    ScriptedSocket.latest.ready();
    // After a change of network or a sleep of the page, the connection is checked with a ping.
    for (const name of ["online", "visibilitychange"]) events.dispatchEvent(new Event(name));
    expect(ScriptedSocket.latest.sent.map((m) => m.type)).toEqual(["ping", "ping"]);
    session.dispose();
    expect(events.registered).toEqual([]);
  });

  test("visibility changes do not keep a dead connection alive", async () => {
    const events = stubPageEvents();
    const { session } = await openReady({ pongTimeoutMs: 4_000 });
    for (let second = 0; second < 4; second++) {
      events.dispatchEvent(new Event("visibilitychange"));
      expect(session.state).toBe("connected");
      await vi.advanceTimersByTimeAsync(1_000);
    }
    expect(session.reason).toMatchObject({ context: { closeCode: 4002 } });
  });

  test("a failed attempt right after coming online is retried soon", async () => {
    vi.stubGlobal("fetch", () => Promise.reject(new TypeError()));
    const events = stubPageEvents();
    const { session, states } = await open();
    for (let i = 0; i < 6; i++) {
      ScriptedSocket.latest.drop();
      await vi.advanceTimersByTimeAsync(30_000);
    }
    expect(session.state).toBe("connecting");
    events.dispatchEvent(new Event("online"));
    ScriptedSocket.latest.drop();
    await vi.advanceTimersByTimeAsync(0);
    expect(states.at(-1)).toMatchObject({ state: "waiting", retryInMs: 1_000 });
  });
});

describe("a dead connection", () => {
  test("is detected when a handshake hangs", async () => {
    vi.stubGlobal("fetch", () => Promise.reject(new TypeError()));
    const { session } = await open();
    await vi.advanceTimersByTimeAsync(10_000);
    expect(session.state).toBe("waiting");
    expect(ScriptedSocket.latest.closedWith).toBeUndefined(); // closed, without a code
  });

  test("is detected by an unanswered ping; any frame keeps it alive", async () => {
    const { session } = await open({ pongTimeoutMs: 4_000 });
    const socket = ScriptedSocket.latest;
    socket.ready({ pingIntervalMs: 20_000 });
    await vi.advanceTimersByTimeAsync(19_000);
    socket.deliver({ type: "audio", audio: {} });
    await vi.advanceTimersByTimeAsync(19_000);
    expect(socket.sent).toHaveLength(0);
    await vi.advanceTimersByTimeAsync(1_000);
    expect(socket.sent.map((m) => m.type)).toEqual(["ping"]);
    socket.deliver({ type: "pong" });
    await vi.advanceTimersByTimeAsync(23_000);
    expect(session.state).toBe("connected");
    await vi.advanceTimersByTimeAsync(1_000);
    expect(session).toMatchObject({ state: "waiting", reason: { code: "CONNECTION_LOST", context: { closeCode: 4002 } } });
    socket.deliver({ type: "chat", streamId: "s9", chat: { text: "too late" } });
    expect(session.position?.streamId).toBe("s0");
  });
});

test("cut lasts until resume; dispose is final", async () => {
  const { session, states } = await openReady();
  const first = ScriptedSocket.latest;
  session.cut();
  first.drop(); // browsers report every close
  await vi.advanceTimersByTimeAsync(600_000);
  expect(ScriptedSocket.all).toHaveLength(1);
  session.resume();
  await vi.advanceTimersByTimeAsync(0);
  ScriptedSocket.latest.ready();
  first.drop(4503);
  session[Symbol.dispose]();
  session.resume();
  session.cut();
  expect(ScriptedSocket.latest.closedWith).toBe(1000);
  expect(states.map((s) => s.state)).toEqual(["connecting", "connected", "cut", "connecting", "connected", "ended"]);
});

test("a socket is terminated by cut and closed with a code by dispose", async () => {
  const terminate = vi.fn();
  const { session } = await open({ WebSocket: class extends ScriptedSocket {
    terminate(): void {
      terminate();
    }
  } });
  ScriptedSocket.latest.ready();
  session.cut();
  expect([terminate.mock.calls.length, ScriptedSocket.latest.closedWith]).toEqual([1, null]);
  session.resume();
  ScriptedSocket.latest.ready();
  session.dispose();
  expect([terminate.mock.calls.length, ScriptedSocket.latest.closedWith]).toEqual([1, 1000]);
});

test("the url option overrides the response's wsUrl", async () => {
  await open({ token: { token: token(), wsUrl: "ws://inside/ws/session" }, url: "wss://outside/ws/session" });
  expect(ScriptedSocket.latest.url).toBe("wss://outside/ws/session");
});
