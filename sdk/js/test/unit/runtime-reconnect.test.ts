import { describe, expect, test, vi } from "vitest";
import { accept, read, settled, until, useScript } from "./runtime-script.js";

const script = useScript();

describe("after a reconnect", () => {
  test("commits are repeated at once", async () => {
    const { connection, channel } = await accept(script);
    const reader = read(channel);
    connection.entries("c1", 1, 2, 3);
    await until(() => reader.entries.length === 3);
    const commits = [channel.commit(reader.entries[0]!), channel.commit(reader.entries[1]!)]; // their replies are lost
    await connection.receive("commit", 1);
    connection.socket.terminate();
    commits.push(channel.commit(reader.entries[2]!));
    const second = await script.reconnect();
    await second.welcome([{ channel: "c1", position: "1-1000" }]);
    for (const n of [0, 1, 2]) await second.answer("commit", {}, n); // no entry is pushed again before
    await Promise.all(commits);
    await settled(second);
    await channel.commit(reader.entries[2]!); // committed already
    expect(second.all("commit").map((commit) => commit.position)).toEqual(["1-1000", "2-1000", "3-1000"]);
  });

  test("the end of a channel whose last commit got no reply is not a loss", async () => {
    const { connection, channel, accepting } = await accept(script);
    const reader = read(channel);
    connection.entry("c1", 1, { kind: "channel_ended" });
    await connection.receive("commit");
    connection.socket.terminate();
    const second = await script.reconnect();
    await second.welcome(); // the service has forgotten the claim
    expect(await reader.ended).toBe("done");
    void accepting.next();
    await second.receive("accept");
  });

  test("a loss undoes the end of a channel", async () => {
    const { connection, channel } = await accept(script);
    const reader = read(channel);
    connection.entry("c1", 1, { kind: "channel_ended" });
    await connection.receive("commit");
    connection.send({ event: "lost", channel: "c1", at: 5 });
    connection.entry("c1", 1, { kind: "frame" });
    await until(() => reader.entries.length === 3);
    expect(reader.entries.map((entry) => entry.kind)).toEqual(["channel_ended", "lost", "frame"]);
  });

  test("a release that got no reply has succeeded if the claim is gone", async () => {
    const { connection, channel } = await accept(script);
    const released = channel.release();
    await connection.receive("release");
    connection.socket.terminate();
    await (await script.reconnect()).welcome();
    await released;
  });

  test("a channel that is not resumed is lost", async () => {
    const { connection, channel, accepting } = await accept(script);
    const reader = read(channel);
    const sent = channel.send("chat", {});
    connection.socket.terminate();
    const second = await script.reconnect();
    await second.welcome();
    expect(await reader.ended).toMatchObject({ name: "TelapiError", code: "CLAIM_LOST" });
    await expect(sent).rejects.toMatchObject({ code: "CLAIM_LOST" });
    await expect(channel.end()).rejects.toMatchObject({ code: "CLAIM_LOST" });
    expect(channel.audio({})).toBe(false);
    const next = accepting.next();
    await second.answer("accept", { channel: "c1", claim: "another", team: "t", endpoint: "e", position: "" });
    const again = (await next).value!;
    const reader2 = read(again);
    second.send({ event: "claim_lost", channel: "c1", claim: "secret" }); // of the former claim
    second.entries("c1", 1);
    await until(() => reader2.entries.length);
    expect(second.all("send")).toEqual([]);
    second.send({ event: "claim_lost", channel: "c1", claim: "another" });
    expect(await reader2.ended).toMatchObject({ code: "CLAIM_LOST" });
  });
});

describe("a loss of data", () => {
  test("is reported before the entries that the service still has", async () => {
    const { connection, channel } = await accept(script);
    const reader = read(channel);
    connection.entries("c1", 1, 2, 3);
    await until(() => reader.entries.length === 3);
    const [, , third] = reader.entries;
    const committing = channel.commit(third!);
    await connection.receive("commit");
    connection.send({ event: "lost", channel: "c1", at: 77 });
    connection.entries("c1", 2);
    connection.entry("c1", 3, { kind: "timeout" });
    await committing;
    await until(() => reader.entries.length === 6);
    expect(reader.texts()).toEqual(["text 1", "text 2", "text 3", "lost", "text 2", "timeout"]);
    expect(reader.entries[3]).toEqual({ kind: "lost", position: "", channelId: "c1", at: 77 });
    await channel.commit(reader.entries[3]!);
    expect(connection.all("commit")).toHaveLength(1);
  });

  test("that happened while there was no connection is reported once", async () => {
    const { connection, channel } = await accept(script, { lostAt: 5 });
    const reader = read(channel);
    connection.entries("c1", 1, 2, 3);
    await until(() => reader.entries.length === 3);
    const committing = channel.commit(reader.entries[2]!);
    connection.socket.terminate();
    const second = await script.reconnect();
    await second.welcome([{ channel: "c1", position: "1-1000", lostAt: 9 }]);
    await committing;
    second.send({ event: "lost", channel: "c1", at: 9 });
    second.entries("c1", 2);
    await until(() => reader.entries.length === 5);
    second.socket.terminate();
    const third = await script.reconnect();
    expect((await third.receive("hello")).resume).toMatchObject([{ received: "2-1000" }]);
    await third.welcome([{ channel: "c1", position: "1-1000", lostAt: 9 }]);
    third.entries("c1", 2, 3);
    await until(() => reader.entries.length === 6);
    expect(reader.texts()).toEqual(["text 1", "text 2", "text 3", "lost", "text 2", "text 3"]);
  });
});

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
  test.each([1000, 1001, 1011, 1012, 4001, 4002, 4499])("closed with %i is opened again", async (code) => {
    await (await script.service.connection(0)).welcome();
    script.service.connections[0]!.socket.close(code);
    await (await script.reconnect()).welcome();
    await until(() => script.runtime.state === "connected");
  });

  test.each([
    [1007, "BAD_FRAMES"], [1008, "REJECTED"], [1009, "MESSAGE_TOO_LARGE"], [4500, "UNAUTHORIZED"], [4501, "BAD_FRAMES"], [4999, "REJECTED"],
  ])("closed with %i is not opened again", async (code, error) => {
    const { connection, channel, accepting } = await accept(script);
    const reader = read(channel);
    const next = accepting.next().catch((error: unknown) => error);
    const sent = channel.send("chat", {});
    connection.socket.close(code);
    const expected = { code: error, context: { closeCode: code } };
    await expect(sent).rejects.toMatchObject(expected);
    expect(await reader.ended).toMatchObject(expected);
    expect(await next).toMatchObject(expected);
    await expect(script.runtime.report([])).rejects.toMatchObject(expected);
    expect(script.runtime).toMatchObject({ state: "ended", reason: expected });
  });

  test("ends with the error that the service pushed before it closed it", async () => {
    const connection = await script.service.connection(0);
    connection.send({ event: "error", error: { code: "UNAUTHORIZED", message: "The key was revoked." } });
    connection.socket.close(4500);
    await until(() => script.runtime.state === "ended");
    expect(script.runtime.reason).toMatchObject({ code: "UNAUTHORIZED", message: "The key was revoked." });
  });

  test("is opened again if hello cannot be served now, and not if it is wrong", async () => {
    await (await script.service.connection(0)).reject("hello", { code: "SERVICE_UNAVAILABLE", message: "later", details: { retryAfterMs: 1_000 } });
    await until(() => script.runtime.state === "waiting");
    expect(script.runtime.reason).toMatchObject({ code: "SERVICE_UNAVAILABLE" });
    await (await script.reconnect()).reject("hello", { code: "VALIDATION_ERROR", message: "name is too long" });
    await until(() => script.runtime.state === "ended");
    expect(script.runtime.reason).toMatchObject({ code: "VALIDATION_ERROR", message: "name is too long" });
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

  test.each([
    ["text that is not JSON", "<html>"],
    ["null", "null"],
    ["a reply without a result", { id: 1 }],
    ["an id of the wrong type", { id: "1", ok: {} }],
    ["an entry without a position", { event: "entry", channel: "c1", entry: { kind: "timeout" } }],
    ["an entry with an invalid position", { event: "entry", channel: "c1", position: "x-1", entry: { kind: "timeout" } }],
    ["an entry without content", { event: "entry", channel: "c1", position: "1-1" }],
  ])("is replaced after a malformed frame, more slowly each time: %s", async (_, frame) => {
    const { connection, channel } = await accept(script);
    const reader = read(channel);
    let latest = connection;
    for (const retryInMs of [250, 500]) {
      let change: object | undefined;
      const remove = script.runtime.on("state", (newest) => (change ??= newest));
      latest.send(frame);
      latest = await script.reconnect();
      remove();
      expect(change).toMatchObject({ state: "waiting", retryInMs, reason: { context: { closeCode: 1002 } } });
      await latest.welcome([{ channel: "c1" }]);
      await until(() => script.runtime.state === "connected");
    }
    latest.entries("c1", 1);
    latest.send({ event: "something new" });
    latest.send({ id: 0, error: { code: "VALIDATION_ERROR", message: "invalid audio" } });
    await until(() => reader.entries.length);
    expect(reader.texts()).toEqual(["text 1"]);
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
  test("ends the runtime if it is final", async () => {
    const error = { code: "FORBIDDEN", message: "The key lacks the scope RUN_CALLS.", requestId: "r1" };
    await script.service.connection(0);
    script.service.rejections.push({ status: 403, body: JSON.stringify({ error }) });
    const runtime = script.start();
    const next = runtime.accept().next();
    await expect(next).rejects.toMatchObject({ code: "FORBIDDEN", message: error.message, context: { status: 403, requestId: "r1" } });
    expect(runtime.state).toBe("ended");
  });

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
