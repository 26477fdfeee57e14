import { describe, expect, test, vi } from "vitest";
import { TelapiError } from "../../src/index.js";
import { Runtime } from "../../src/runtime.js";
import { accept, read, settled, until, useScript } from "./runtime-script.js";

const script = useScript();

const claim = (channel: string) => ({ channel, claim: `secret of ${channel}`, team: "t", endpoint: "e", position: "" });

describe("a runtime", () => {
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
