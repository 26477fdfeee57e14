import { describe, expect, test, vi } from "vitest";
import { type Rejection, type TokenResponse } from "../../src/index.js";
import { stubFetch, useFakeTimersAndRandom, open, openReady, ScriptedSocket, token } from "./script.js";

useFakeTimersAndRandom(0.999999);

describe("a rejected handshake", () => {
  const envelope = { error: { code: "SESSION_ENDED", message: "The session has ended.", requestId: "r1" } };

  test("ends the session with the error from the service", async () => {
    const fetch = stubFetch(410, envelope);
    const { session } = await open();
    const rejected: Rejection[] = [];
    session.on("rejected", (rejection) => rejected.push(rejection));
    ScriptedSocket.latest.drop();
    await vi.advanceTimersByTimeAsync(0);
    expect(fetch.mock.calls[0]).toMatchObject(["http://service/ws/session", {
      headers: { Authorization: `Bearer ${token()}` }, cache: "no-store", credentials: "omit", signal: expect.any(AbortSignal),
    }]);
    expect(rejected).toMatchObject([{ final: true, error: { code: "SESSION_ENDED", message: "The session has ended.", context: { status: 410, requestId: "r1" } } }]);
    expect(session.reason).toBe(rejected[0]?.error);
  });

  test.each([
    ["429 with Retry-After", 429, { error: { code: "RATE_LIMIT_EXCEEDED", message: "Slow down." } }, { "Retry-After": "7" }, "RATE_LIMIT_EXCEEDED", 8_000],
    ["503 with Retry-After", 503, { error: { code: "SERVICE_UNAVAILABLE", message: "Try again later." } }, { "Retry-After": "2" }, "SERVICE_UNAVAILABLE", 3_000],
    ["503 with Retry-After above the maximum of a timer", 503, { error: { code: "SERVICE_UNAVAILABLE", message: "Try again later." } }, { "Retry-After": "9999999" }, "SERVICE_UNAVAILABLE", 2 ** 31 - 1],
    ["502 from a load balancer", 502, "<html>", {}, "HTTP_502", 1_000],
    ["426 for a valid token", 426, envelope, {}, "HANDSHAKE_FAILED", 1_000],
  ])("%s is retried", async (_, status, body, headers, code, wait) => {
    stubFetch(status, body, headers);
    const { session, states } = await open();
    const rejected = vi.fn();
    session.on("rejected", rejected);
    ScriptedSocket.latest.drop();
    await vi.advanceTimersByTimeAsync(0);
    expect(rejected.mock.calls[0]![0]).toMatchObject({ final: false, error: { code } });
    expect(states.at(-1)).toMatchObject({ state: "waiting", retryInMs: wait });
  });

  test("SESSION_IN_USE is final on the first connection and retried on a reconnect", async () => {
    stubFetch(409, { error: { code: "SESSION_IN_USE", message: "Another connection is open." } });
    const first = await open();
    ScriptedSocket.latest.drop();
    await vi.advanceTimersByTimeAsync(0);
    expect(first.session).toMatchObject({ state: "ended", reason: { code: "SESSION_IN_USE" } });
    const { session } = await openReady();
    ScriptedSocket.latest.drop();
    await vi.advanceTimersByTimeAsync(1_000);
    ScriptedSocket.latest.drop();
    await vi.advanceTimersByTimeAsync(0);
    expect(session).toMatchObject({ state: "waiting", reason: { code: "SESSION_IN_USE" } });
  });

  test("an unreachable service is retried", async () => {
    vi.stubGlobal("fetch", () => Promise.reject(new TypeError("fetch failed")));
    const { session } = await open();
    ScriptedSocket.latest.drop();
    await vi.advanceTimersByTimeAsync(0);
    expect(session.reason?.code).toBe("UNREACHABLE");
  });

  test("a disallowed origin is reported", async () => {
    vi.stubGlobal("location", { origin: "https://page.example" });
    vi.stubGlobal("fetch", (_: string, init: RequestInit) => (init.mode === "no-cors" ? Promise.resolve({}) : Promise.reject(new TypeError())));
    const { session } = await open();
    ScriptedSocket.latest.drop();
    await vi.advanceTimersByTimeAsync(0);
    expect(session.reason).toMatchObject({ code: "ORIGIN_NOT_ALLOWED", message: expect.stringContaining("https://page.example") });
  });

  test("a token that expired before use is fetched again, once", async () => {
    stubFetch(401, { error: { code: "UNAUTHORIZED", message: "The token has expired." } });
    const issue = vi.fn(() => Promise.resolve({ token: token(), wsUrl: "ws://service/ws/session" }));
    const { session } = await open({ issue });
    for (const calls of [1, 2]) {
      expect(issue).toHaveBeenCalledTimes(calls);
      ScriptedSocket.latest.drop();
      await vi.advanceTimersByTimeAsync(2_000);
    }
    expect(session.reason?.code).toBe("UNAUTHORIZED");
    expect(issue).toHaveBeenCalledTimes(2);
  });

  test("a redeemed token is not replaced", async () => {
    stubFetch(410, envelope);
    const issue = vi.fn(() => Promise.resolve({ token: token(), wsUrl: "ws://service/ws/session" }));
    const { session } = await openReady({ issue });
    ScriptedSocket.latest.drop();
    await vi.advanceTimersByTimeAsync(1_000);
    ScriptedSocket.latest.drop();
    await vi.advanceTimersByTimeAsync(2_000);
    expect(session.reason?.code).toBe("SESSION_ENDED");
    expect(issue).toHaveBeenCalledTimes(1);
  });

  test.each(["error response", "network error"])("%s after cut is ignored", async (result) => {
    let settle = (_: Response | Promise<never>) => {};
    vi.stubGlobal("fetch", () => new Promise((resolve) => (settle = resolve)));
    const { session, states } = await open();
    ScriptedSocket.latest.drop();
    session.cut();
    settle(result === "network error" ? Promise.reject(new TypeError()) : new Response(JSON.stringify(envelope), { status: 410 }));
    await vi.advanceTimersByTimeAsync(60_000);
    expect(states.map((s) => s.state)).toEqual(["connecting", "cut"]);
  });

  test("a token that arrives after cut or dispose is ignored", async () => {
    const pending: ((response: TokenResponse) => void)[] = [];
    const issue = () => new Promise<TokenResponse>((resolve) => pending.push(resolve));
    const respond = async (index: number, sub: string) => {
      pending[index]!({ token: token(3_600, sub), wsUrl: "ws://service/ws/session" });
      await vi.advanceTimersByTimeAsync(0);
    };
    const { session } = await open({ issue });
    session.cut();
    session.resume();
    await respond(1, "ses_2");
    await respond(0, "ses_1"); // the older request completes last
    expect([session.sessionId, ScriptedSocket.all.length]).toEqual(["ses_2", 1]);
    session.dispose();
    const disposed = await open({ issue });
    disposed.session.dispose();
    await respond(2, "ses_3");
    expect([disposed.session.sessionId, ScriptedSocket.all.length]).toEqual([undefined, 0]);
  });

  test("a failed token request ends the session with an error", async () => {
    const { session } = await open({ issue: () => Promise.reject(new Error("no credit")) });
    expect(session.reason).toMatchObject({ code: "ISSUE_FAILED", message: expect.stringContaining("no credit") });
    expect((await open({ token: "nonsense" })).session.reason?.code).toBe("BAD_TOKEN");
    expect((await open({ issue: () => Promise.resolve(undefined as never) })).session.reason?.code).toBe("BAD_TOKEN");
  });

  test("an error forwarded by the page's server keeps the service's message", async () => {
    const response = { error: { code: "QUOTA_EXCEEDED", message: "No more sessions.", requestId: "R1" } };
    const { session } = await open({ issue: () => Promise.resolve(response as never) });
    expect(session.reason).toMatchObject({ code: "QUOTA_EXCEEDED", message: "No more sessions.", context: { requestId: "R1" } });
  });
});
