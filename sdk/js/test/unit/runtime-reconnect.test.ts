import { describe, expect, test, vi } from "vitest";
import { accept, read, settled, until, useScript } from "./runtime-script.js";

const script = useScript();

describe("a drain", () => {
  test("goes on with the old connection if there is no new one yet", async () => {
    const { connection, channel } = await accept(script);
    script.service.rejections.push({ status: 503, body: "" });
    connection.send({ event: "drain", withinMs: 5_000 });
    await until(() => !script.service.rejections.length);
    await settled(connection);
    const sent = channel.send("chat", {});
    await connection.answer("send");
    await sent;
    connection.socket.close(1012);
    await (await script.reconnect()).welcome([{ channel: "c1" }]);
    await until(() => script.runtime.state === "connected");
  });
});

describe("a connection", () => {
  test("whose close code is final ends everything with an error", async () => {
    const { connection, channel, accepting } = await accept(script);
    const reader = read(channel);
    const next = accepting.next().catch((error: unknown) => error);
    const sent = channel.send("chat", {});
    connection.socket.close(4501);
    const expected = { code: "BAD_FRAMES", context: { closeCode: 4501 } };
    await expect(sent).rejects.toMatchObject(expected);
    expect(await reader.ended).toMatchObject(expected);
    expect(await next).toMatchObject(expected);
    await expect(script.runtime.report([])).rejects.toMatchObject(expected);
    expect(script.runtime).toMatchObject({ state: "ended", reason: expected });
  });

  test("is lost without pings, and kept by them", async () => {
    const connection = await script.service.connection(0);
    await connection.welcome([], { pingIntervalMs: 1_000 });
    await until(() => script.runtime.state === "connected");
    for (let i = 0; i < 3; i++) {
      vi.advanceTimersByTime(2_000);
      await settled(connection);
    }
    vi.advanceTimersByTime(2_499);
    expect(script.runtime.state).toBe("connected");
    vi.advanceTimersByTime(1);
    expect(script.runtime).toMatchObject({ state: "waiting", reason: { code: "CONNECTION_LOST", context: { closeCode: 4002 } } });
  });

  test("is lost if hello is not answered", async () => {
    await (await script.service.connection(0)).receive("hello");
    vi.advanceTimersByTime(10_000);
    expect(script.runtime).toMatchObject({ state: "waiting", reason: { context: { closeCode: 4002 } } });
  });

  test("is replaced after a malformed frame, more slowly each time", async () => {
    let { connection: latest } = await accept(script);
    for (const retryInMs of [250, 500]) {
      let change: object | undefined;
      const remove = script.runtime.on("state", (newest) => (change ??= newest));
      latest.send("<html>");
      latest = await script.reconnect();
      remove();
      expect(change).toMatchObject({ state: "waiting", retryInMs, reason: { context: { closeCode: 1002 } } });
      await latest.welcome([{ channel: "c1" }]);
      await until(() => script.runtime.state === "connected");
    }
  });

  test("keeps a request whose reply is malformed", async () => {
    const connection = await script.service.connection(0);
    await connection.welcome();
    const opened = script.runtime.open({ endpoint: "e" });
    await connection.answer("open", { channel: "c1", claim: "s", position: "?" });
    const second = await script.reconnect();
    await second.welcome();
    await second.answer("open", { channel: "c1", claim: "s", position: "" });
    expect((await opened).id).toBe("c1");
  });
});

describe("a rejected handshake", () => {
  test.each([
    ["429 with Retry-After", { status: 429, body: '{"error":{"code":"RATE_LIMIT_EXCEEDED","message":"slow down"}}', headers: { "Retry-After": "7" } }, "RATE_LIMIT_EXCEEDED", 7_250],
    ["502 of a load balancer", { status: 502, body: "<html>" }, "HTTP_502", 250],
    ["200 of another server", { status: 200, body: "hello" }, "HTTP_200", 250],
    ["304", { status: 304, body: "" }, "HTTP_304", 250],
  ])("is repeated after %s", async (_, rejection, code, retryInMs) => {
    await script.service.connection(0);
    script.service.rejections.push(rejection);
    const runtime = script.start();
    const change = await new Promise((resolve) => runtime.on("state", resolve));
    expect(change).toMatchObject({ state: "waiting", retryInMs, reason: { code } });
  });

  test("is repeated with growing delays while the service is away", async () => {
    const runtime = script.start({ url: "http://127.0.0.1:1", minDelayMs: 100, maxDelayMs: 350 });
    const delays: (number | undefined)[] = [];
    runtime.on("state", ({ retryInMs, reason }) => {
      if (!retryInMs) return;
      delays.push(retryInMs);
      expect(reason!.message).toContain("ECONNREFUSED");
    });
    for (let i = 1; i <= 4; i++) {
      await until(() => delays.length === i);
      vi.advanceTimersByTime(delays.at(-1)!);
    }
    expect(delays).toEqual([100, 200, 350, 350]);
    await until(() => runtime.state === "waiting");
  });
});
