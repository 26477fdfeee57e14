import { describe, expect, test, vi } from "vitest";
import { TelapiError } from "../../src/index.js";
import { Runtime } from "../../src/runtime.js";
import { accept, read, settled, until, useScript } from "./runtime-script.js";

const script = useScript();

const claim = (channel: string) => ({ channel, claim: `secret of ${channel}`, team: "t", endpoint: "e", position: "" });

describe("a runtime", () => {
  test("sends a console JWT as a bearer token, and finds the service under a path", async () => {
    script.start({ key: "a.b.c", url: `${script.service.url}/calls/`, resumeMs: 5_000 });
    const connection = await until(() => script.service.connections.find(({ request }) => request.url === "/calls/ws/runtime"));
    expect(connection.request.headers.authorization).toBe("Bearer a.b.c");
    expect(connection.request.headers).not.toHaveProperty("x-api-key");
    expect(await connection.receive("hello")).toMatchObject({ resumeMs: 5_000 });
  });

  test.each([
    [{ url: "localhost" }, "BAD_URL", 'Invalid url "localhost"'],
    [{ url: undefined }, "BAD_URL", 'Invalid url "undefined"'],
    [{ url: "http://localhost", name: "" }, "VALIDATION_ERROR", "name"],
    [{ url: "http://localhost", key: undefined }, "VALIDATION_ERROR", "key"],
  ])("rejects the options %j", (options, code, message) => {
    const error = (() => {
      try {
        return new Runtime({ key: "k", name: "n", ...options } as never);
      } catch (error) {
        return error as TelapiError;
      }
    })();
    expect(error).toBeInstanceOf(TelapiError);
    expect(error).toMatchObject({ code, message: expect.stringContaining(message) });
  });

  test("asks for as many sessions as it has capacity", async () => {
    const connection = await script.service.connection(0);
    await connection.welcome();
    const accepting = script.runtime.accept({ capacity: 2, endpoints: ["e"], modes: ["chat"] });
    const first = accepting.next();
    expect(await connection.answer("accept", claim("c1"))).toMatchObject({ endpoints: ["e"], modes: ["chat"] });
    await connection.answer("accept", claim("c2"), 1);
    const channel = (await first).value!;
    expect([channel.id, (await accepting.next()).value!.id]).toEqual(["c1", "c2"]);
    await settled(connection);
    expect(connection.all("accept")).toHaveLength(2);
    void channel.release();
    await connection.answer("release");
    await connection.answer("accept", claim("c3"), 2);
    expect((await accepting.next()).value!.id).toBe("c3");
  });

  test("repeats an accept that the service cannot serve now, and ends if it may not accept", async () => {
    const connection = await script.service.connection(0);
    await connection.welcome();
    const accepted = script.runtime.accept({ capacity: 1 }).next();
    await connection.reject("accept", { code: "SERVICE_UNAVAILABLE", message: "later", details: { retryAfterMs: 700 } });
    await settled(connection);
    vi.advanceTimersByTime(699);
    await settled(connection);
    expect(connection.all("accept")).toHaveLength(1);
    vi.advanceTimersByTime(1);
    expect(await connection.receive("accept", 1)).not.toHaveProperty("retry"); // it is about a channel
    await connection.reject("accept", { code: "FORBIDDEN", message: "no", details: { scope: "RUN_CALLS" } }, 1);
    await expect(accepted).rejects.toMatchObject({ name: "TelapiError", code: "FORBIDDEN", message: "no", context: { details: { scope: "RUN_CALLS" } } });
  });

  test("repeats the requests of a channel in order while the service cannot serve them", async () => {
    const { connection, channel } = await accept(script);
    const unavailable = { code: "SERVICE_UNAVAILABLE", message: "later" };
    const sent = [channel.send("chat", { text: "a" }), channel.send("chat", { text: "b" })];
    await connection.reject("send", unavailable); // the reply to the second comes late
    await settled(connection);
    sent.push(channel.send("chat", { text: "c" }));
    const reported = script.runtime.report([{ characters: 1 }]);
    await connection.answer("report");
    await reported;
    expect(connection.all("send")).toHaveLength(2);
    vi.advanceTimersByTime(1_000);
    await connection.receive("send", 4);
    expect(connection.all("send").slice(2).map(({ messages }) => messages[0].chat.text)).toEqual(["a", "b", "c"]);
    expect(connection.all("send").every(({ claim }) => claim === "secret")).toBe(true);
    expect(connection.all("send").map(({ retry }) => retry)).toEqual([undefined, undefined, true, undefined, undefined]);
    for (const index of [2, 3, 4]) await connection.answer("send", {}, index);
    await Promise.all(sent);
    void channel.send("chat", {});
    await connection.reject("send", unavailable, 5);
    await settled(connection);
    connection.send({ event: "claim_lost", channel: "c1", claim: "secret" });
    await settled(connection);
    expect(vi.getTimerCount()).toBe(1); // the one for pings
  });

  test("releases a session that it is given after it has stopped accepting", async () => {
    const { connection, channel, accepting } = await accept(script, {}, 2);
    await accepting.return(undefined);
    await connection.answer("accept", claim("c2"), 1);
    expect(await connection.receive("release")).toMatchObject({ channel: "c2" });
    void channel.end();
    expect(await connection.receive("end")).toMatchObject({ channel: "c1" });
  });

  test("gives its channels back when it is closed", async () => {
    const { connection, channel, accepting } = await accept(script);
    const reader = read(channel);
    const next = accepting.next();
    const closing = script.runtime.close();
    await connection.answer("release");
    await closing;
    expect(await connection.closed()).toBe(1000);
    expect(await reader.ended).toBe("done");
    expect(await next).toMatchObject({ done: true });
    expect(script.runtime).toMatchObject({ state: "ended", reason: { code: "CLOSED" } });
    await expect(script.runtime.open({ endpoint: "e" })).rejects.toMatchObject({ code: "CLOSED" });
    await expect(channel.send("chat", {})).rejects.toMatchObject({ code: "CONVERSATION_ENDED" });
  });

  test("closes without the service", async () => {
    const { connection, channel, accepting } = await accept(script);
    const reader = read(channel);
    const next = accepting.next();
    connection.socket.terminate();
    await until(() => script.runtime.state === "waiting");
    await script.runtime.close();
    expect(await reader.ended).toMatchObject({ code: "CLOSED" });
    expect(await next).toMatchObject({ done: true });
  });

  test("opens a channel, and reports speech, under ids that a repetition keeps", async () => {
    const connection = await script.service.connection(0);
    await connection.welcome();
    const opened = script.runtime.open({ endpoint: "e", callId: "7" });
    const reported = script.runtime.report([{ characters: 5 }]);
    const [open, report] = [await connection.receive("open"), await connection.receive("report")];
    expect(open).toMatchObject({ channel: expect.stringMatching(/^[\da-f-]{36}$/), endpoint: "e", callId: "7" });
    expect(report.reports).toEqual([{ id: expect.stringMatching(/^[\da-f-]{36}$/), at: expect.any(Number), characters: 5 }]);
    connection.socket.terminate();
    const second = await script.reconnect();
    await second.welcome();
    expect(await second.answer("open", claim(open.channel))).toEqual(open);
    expect(await second.answer("report")).toEqual(report);
    await reported;
    const channel = await opened;
    expect(channel.id).toBe(open.channel);
    const again = script.runtime.open({ endpoint: "e", channel: channel.id });
    await second.answer("open", claim(channel.id), 1);
    expect(await again).toBe(channel);
  });
});

describe("a channel", () => {
  test("sends requests in order and matches replies in any order", async () => {
    const { connection, channel } = await accept(script);
    const sent = channel.send("browser_action", { a: 1 }, { messageId: "m1", trace: { traceId: "t1" } });
    const item = channel.await({ kind: "bot", ttlMs: 1_000 });
    const cancelled = channel.cancel({ workItemId: "w1" });
    const ended = channel.end("bye");
    await connection.answer("end");
    await connection.reject("cancel", { code: "NOT_FOUND", message: "unknown work item" });
    const request = await connection.answer("await", { workItemId: "w2", token: "cbt_1", url: "http://u", deadline: 5 });
    await connection.answer("send", { messageIds: ["m1"] });
    expect(connection.frames.slice(2)).toMatchObject([
      { op: "send", channel: "c1", messages: [{ type: "browser_action", sessionId: "c1", messageId: "m1", direction: "to_browser", browserAction: { a: 1 }, trace: { traceId: "t1" } }] },
      { op: "await", channel: "c1", kind: "bot", ttlMs: 1_000 },
      { op: "cancel", workItemId: "w1" },
      { op: "end", reason: "bye" },
    ]);
    expect(request.workItemId).toMatch(/^[\da-f-]{36}$/);
    expect(await sent).toBe("m1");
    expect(await item).toEqual({ workItemId: "w2", token: "cbt_1", url: "http://u", deadline: 5 });
    await expect(cancelled).rejects.toMatchObject({ code: "NOT_FOUND" });
    await ended;
  });

  test("has an ID for what an entry causes", async () => {
    const { channel } = await accept(script);
    const ids = [channel.idFor({ position: "1-5", at: 1 }), channel.idFor({ position: "1-5", at: 1 }, "item"), channel.idFor({ position: "1-6", at: 1 }), channel.idFor({ position: "", at: 1 })];
    for (const id of ids) expect(id).toMatch(/^[\da-f]{8}-[\da-f]{4}-5[\da-f]{3}-8[\da-f]{3}-[\da-f]{12}$/);
    expect(new Set(ids).size).toBe(4);
    expect(channel.idFor({ position: "1-5", at: 2 })).toBe(ids[0]);
  });

  test("passes audio on, and drops it without a connection", async () => {
    const { connection, channel } = await accept(script);
    const received: unknown[] = [];
    const remove = channel.on("audio", (payload) => received.push(payload));
    connection.send({ event: "audio", channel: "c1", message: { type: "audio", audio: { n: 1 } } });
    connection.send({ event: "audio", channel: "unknown", message: { type: "audio", audio: { n: 2 } } });
    expect(channel.audio({ data: "x" })).toBe(true);
    expect(await connection.receive("audio")).toEqual({ op: "audio", channel: "c1", claim: "secret", message: expect.objectContaining({ type: "audio", audio: { data: "x" } }) });
    await settled(connection);
    expect(received).toEqual([{ n: 1 }]);
    remove();
    connection.socket.terminate();
    await until(() => script.runtime.state === "waiting");
    expect(channel.audio({ data: "x" })).toBe(false);
  });

  test("a commit does not wait for the service, and is not overtaken", async () => {
    const { connection, channel } = await accept(script);
    const reader = read(channel);
    connection.entries("c1", 1);
    await until(() => reader.entries.length === 1);
    await channel.commit(reader.entries[0]!);
    const released = channel.release();
    await connection.answer("release");
    await released;
    expect(connection.frames.map((frame) => frame.op).slice(-2)).toEqual(["commit", "release"]);
  });

  test("bounds unanswered requests and their size", async () => {
    const { connection, channel } = await accept(script);
    for (let i = 0; i < 256; i++) void channel.send("chat", { text: `${i}` });
    await expect(channel.send("chat", {})).rejects.toMatchObject({ code: "OUTBOX_FULL" });
    await connection.answer("send", {}, 17);
    await settled(connection);
    void channel.send("chat", { text: "one more" });
    await expect(channel.send("chat", {})).rejects.toMatchObject({ code: "OUTBOX_FULL" });
    await connection.answer("send", {}, 18);
    await settled(connection);
    await expect(channel.send("chat", { text: "é".repeat(1 << 19) })).rejects.toMatchObject({ code: "PAYLOAD_TOO_LARGE" });
    expect(connection.all("send")).toHaveLength(257);
  });

  test("that no caller waits for does not crash the process", async () => {
    const rejections = vi.fn();
    process.on("unhandledRejection", rejections);
    const { connection, channel } = await accept(script);
    void channel.send("chat", {});
    void channel.commit({ position: "unknown" });
    void channel.end();
    connection.send({ event: "claim_lost", channel: "c1", claim: "secret" });
    await settled(connection);
    await new Promise((resolve) => setImmediate(resolve));
    process.off("unhandledRejection", rejections);
    expect(rejections).not.toHaveBeenCalled();
  });
});
