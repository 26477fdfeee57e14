import { execFileSync } from "node:child_process";
import { expect, test } from "vitest";
import type { TimelineEvent } from "../src/api.js";
import { createTrace, parseTrace, traceAsHtml } from "../src/export.js";
import { curlOf } from "../src/inspector.js";
import { orderByCause } from "../src/order.js";
import { redact } from "../src/redact.js";
import { addPart, withParts } from "../src/streamed.js";
import { voiceTurnsOf } from "../src/voice-turns.js";
import { formatMs, percentile, turnsOf } from "../src/turns.js";

/** An event in short form. */
const event = (title: string, at: number, more: Partial<TimelineEvent> = {}): TimelineEvent => ({ at, lane: "service", kind: "entry", title, sessionId: "s", ...more });
const order = (...events: TimelineEvent[]) => orderByCause(events.map((event) => ({ event, time: event.at }))).map(({ event }) => event.title);

test("an event follows its causes, whatever the clocks say", () => {
  const sent = event("sent", 9_000, { ids: ["frame:M"], source: "page", seq: 1 });
  const stored = event("stored", 2_000, { ids: ["entry:1", "stored:M"], after: ["frame:M"], source: "entries", seq: 1 });
  const request = event("request", 5_000, { ids: ["request:W"], after: ["entry:1"], source: "demo", seq: 1 });
  const ack = event("ack", 9_010, { after: ["stored:M"], source: "page", seq: 2 });
  for (const events of [[sent, stored, request, ack], [ack, request, stored, sent], [request, sent, ack, stored]]) {
    expect(order(...events)).toEqual(["sent", "stored", "request", "ack"]);
  }
});

test("events of one source keep their order if the clock is set back", () => {
  expect(order(event("second", 1, { source: "entries", seq: 10 }), event("first", 5, { source: "entries", seq: 9 }), event("unrelated", 3))).toEqual(["unrelated", "first", "second"]);
});

test("an event follows all events with an ID, and ignores unknown IDs", () => {
  expect(order(event("receipt", 1, { after: ["routed:C", "missing"] }), event("a", 2, { ids: ["routed:C"] }), event("b", 3, { ids: ["routed:C"] }))).toEqual(["a", "b", "receipt"]);
});

test("a parked result is released at its turn, not when it arrived", () => {
  const first = event("first", 1_500, { source: "entries", seq: 1 });
  const second = event("second", 300, { after: ["parked:W"], source: "entries", seq: 2 });
  const parked = event("parked", 310, { ids: ["parked:W"] });
  expect(order(second, first, parked, event("between", 900))).toEqual(["parked", "between", "first", "second"]);
});

test("a cycle does not hang", () => {
  expect(order(event("a", 1, { ids: ["a"], after: ["b"] }), event("b", 2, { ids: ["b"], after: ["a"] })).toSorted()).toEqual(["a", "b"]);
});

test("a long chain of causes does not overflow the stack", () => {
  const chain = Array.from({ length: 20_000 }, (_, index) => event(String(index), -index, { source: "entries", seq: index + 1 }));
  expect(order(...chain.toReversed()).at(-1)).toBe("19999");
});

/** A turn: the frame is sent at 1000 by the browser's clock, which is 7 s ahead of the service's and 3 s behind the bot's. */
const turn = (more: Partial<Record<string, Partial<TimelineEvent>>> = {}): TimelineEvent[] =>
  [
    event("sent", 1_000, { ids: ["frame:M"], source: "page", data: { chat: { text: "hello" } } }),
    event("stored", 8_020, { ids: ["entry:1", "stored:M"], after: ["frame:M"], source: "entries" }),
    event("ack", 1_050, { to: "browser", after: ["stored:M"], source: "page", data: { timestamp: 8_030 } }),
    event("request", 4_040, { ids: ["request:W"], after: ["entry:1"], ms: 2 }),
    event("answer", 4_345, { ids: ["answer:W"], after: ["request:W"], ms: 300 }),
    event("entry", 8_350, { ids: ["entry:2", "routed:C"], after: ["request:W", "answer:W", "parked:W"], source: "entries" }),
    event("receipt", 4_350, { to: "bot", after: ["answer:W", "routed:C"], ms: 5 }),
    event("reads bot_message", 4_351, { kind: "mark", after: ["entry:2"], ms: 311 }),
    event("sends chat", 4_352, { kind: "mark", ids: ["sending:N"], after: ["entry:2"], ms: 3 }),
    event("message", 8_360, { ids: ["message:N"], after: ["sending:N"], data: { message: { chat: { text: "Hello!", spoken: true } } } }),
    event("received", 1_400, { to: "browser", after: ["message:N"], source: "page" }),
    event("speech synthesized", 4_420, { kind: "speech", ms: 60, data: { text: "Hello!" } }),
  ].map((event) => ({ ...event, ...more[event.title] }));
const turns = (events: TimelineEvent[]) => turnsOf(events.map((event) => ({ event })));

test("each part of a turn is measured by one clock", () => {
  const [{ text, times, total, parkedMs }] = turns(turn()) as [ReturnType<typeof turns>[number]];
  expect({ text, times, total, parkedMs }).toEqual({ text: "hello", times: { browser: 40, service: 15, runtime: 5, bot: 300, waiting: 40, speech: 60 }, total: 460, parkedMs: undefined });
});

test("a part is never negative, and an unanswered turn has no total", () => {
  const [odd] = turns(turn({ ack: { at: 900 }, stored: { at: 9_999_999 }, received: { at: 0 } }));
  expect(Object.values(odd!.times).every((ms) => ms >= 0)).toBe(true);
  expect(turns(turn().filter(({ title }) => title !== "received"))[0]!.total).toBeUndefined();
  expect(turns([])).toEqual([]);
});

test("a parked answer shows how long it was parked; a bot that reports nothing is timed by the runtime", () => {
  expect(turns(turn({ receipt: { ids: ["parked:W"], after: ["answer:W"], at: 4_100 } }))[0]!.parkedMs).toBe(251);
  expect(turns(turn().filter(({ title }) => title !== "answer" && title !== "receipt"))[0]!.times.bot).toBe(311);
});

test("the second part of an answer belongs to the same utterance", () => {
  const second = event("request 2", 4_060, { ids: ["request:X"], after: ["request:W"] });
  expect(turns([...turn(), second]).map(({ text }) => text)).toEqual(["hello", "hello"]);
});

test("the parts of an answer are numbered, if there are several", () => {
  const first = { data: { part: 1 } };
  const second = event("request 2", 4_060, { ids: ["request:X"], after: ["request:W"], data: { part: 2 } });
  expect(turns(turn({ request: first })).map(({ part }) => part)).toEqual([undefined]);
  expect(turns([...turn({ request: first }), second]).map(({ part }) => part)).toEqual([1, 2]);
});

test("a turn without an answer says that it timed out, or that the session ended", () => {
  const asked = turn().slice(0, 4);
  const outcomes = (...events: TimelineEvent[]) => turns(events).map(({ outcome }) => outcome);
  const timeout = event("bot_timeout: pending questions cancelled", 9_000, { kind: "timer" });
  const end = event("ended: hangup", 9_100, { kind: "session" });
  expect(outcomes(...asked)).toEqual([undefined]);
  expect(outcomes(timeout, ...asked)).toEqual([undefined]); // of an earlier turn
  expect(outcomes(...asked, timeout, end)).toEqual(["timed out"]);
  expect(outcomes(...asked, event("timeout", 9_000, { kind: "timer", source: "entries", after: ["request:W"] }))).toEqual(["timed out"]);
  expect(outcomes(...asked, end)).toEqual(["ended"]);
  expect(outcomes(...turn(), timeout, end)).toEqual([undefined]);
});

/** A spoken turn: speech ends at 1000; the end is noticed 700 ms later. With a bot, the answer is played, and interrupted. */
const spoken = (bot: boolean): TimelineEvent[] => [
  event("heard", 1_700, { source: "demo", ids: ["heard:U"], data: { ms: 1_500, silenceMs: 700 } }),
  ...(bot
    ? [
        event("transcript: hi", 1_900, { source: "demo", after: ["heard:U"], data: { text: "hi", ms: 200 } }),
        event("request", 1_910, { source: "demo", ids: ["request:W"], after: ["heard:U"], data: { text: "hi" } }),
        event("entry", 0, { source: "entries", ids: ["entry:2"], after: ["request:W"] }),
        event("sends chat", 2_210, { source: "demo", kind: "mark", ids: ["sending:N"], after: ["entry:2"] }),
        event("plays", 2_300, { source: "demo", ids: ["playing:N"], after: ["sending:N"] }),
      ]
    : [
        event("sends chat", 1_710, { source: "demo", kind: "mark", ids: ["sending:N"] }),
        event("repeats", 1_720, { source: "demo", ids: ["playing:N"], after: ["sending:N", "heard:U"] }),
      ]),
  event(bot ? "playback stopped" : "played", 3_220, { source: "demo", after: ["playing:N"] }),
];

test("a spoken turn has its stages, with a bot and without", () => {
  const turnOf = (events: TimelineEvent[]) => voiceTurnsOf(events.map((event) => ({ event }))).map(({ node, ...turn }) => turn);
  expect(turnOf(spoken(true))).toEqual([{ text: "hi", times: { request: 910, text: 300, audio: 90, playback: 920 }, response: 1_300, interrupted: true }]);
  expect(turnOf(spoken(false))).toEqual([{ text: "spoke for 1.5 s", times: { text: 710, audio: 10, playback: 1_500 }, response: 720, interrupted: false }]);
  expect(turnOf(spoken(false).slice(0, 1))).toEqual([{ text: "spoke for 1.5 s", times: {}, interrupted: false }]);
  expect(turns(spoken(true)).map(({ spoken }) => spoken)).toEqual([true]);
});

test("a spoken turn of an answer that streams lasts from its first sentence to the end of its last", () => {
  const second = [
    event("entry", 0, { source: "entries", ids: ["entry:3"], after: ["request:W"] }),
    event("sends chat", 2_900, { source: "demo", kind: "mark", ids: ["sending:O"], after: ["entry:3"] }),
    event("sends status", 2_950, { source: "demo", kind: "mark", ids: ["sending:P"], after: ["entry:3"] }),
    event("plays", 3_230, { source: "demo", ids: ["playing:O"], after: ["sending:O"] }),
    event("played", 4_300, { source: "demo", after: ["playing:O"] }),
  ];
  const [turn] = voiceTurnsOf([...spoken(true), ...second].map((event) => ({ event })));
  expect([turn!.times, turn!.response]).toEqual([{ request: 910, text: 300, audio: 90, playback: 2_000 }, 1_300]);
});

test("a typed turn of an answer that streams has the time of its first text", () => {
  const part = (text: string, part: number) => ({ message: { chat: { text, part, workItemId: "W" } } });
  const events = turn().map((row) =>
    /^(?:message|received)$/.test(row.title) ? addPart(withParts({ ...row, data: part("Hello!", 1) }), { ...row, at: row.at + 500, data: part("Bye.", 2) }) : row);
  const [sent, received] = ["frame:", "message:"].map((id) => events.find(({ source, ids = [], after = [] }) => source === "page" && [...ids, ...after].some((other) => other.startsWith(id)))!);
  const [streamed] = turns(events);
  expect([streamed!.times.stream, streamed!.times.bot]).toEqual([500, 311]); // the runtime's wait
  expect(streamed!.firstTextMs).toBe(received!.at - sent!.at);
  expect(streamed!.total).toBe(streamed!.firstTextMs! + 500 + (streamed!.times.speech ?? 0));
});

test("a turn of keys is named by its digits", () => {
  expect(turns(turn({ request: { data: { dtmf: "42", part: 1 } } }))[0]!.text).toBe("digits 42");
});

test("percentiles are nearest ranks", () => {
  const values = Array.from({ length: 100 }, (_, index) => 100 - index);
  expect([percentile(values, 50), percentile(values, 95), percentile([7], 95), percentile([], 50)]).toEqual([50, 95, 7, undefined]);
  expect([undefined, 0.04, 9.96, 35.4, 1_210].map(formatMs)).toEqual(["–", "0 ms", "10 ms", "35 ms", "1.21 s"]);
});

test("a curl command survives the shell", () => {
  const command = curlOf({ method: "POST", url: "http://localhost/a?b=c&d=$e", headers: { "Content-Type": "application/json", token: "$CALLBACK_TOKEN" } }, { text: "it's `$HOME` \"quoted\" \\ </script>\n" });
  const words = execFileSync("sh", ["-c", `curl() { printf '%s\\0' "$@"; }; ${command}`], { env: { CALLBACK_TOKEN: "secret" } }).toString().split("\0").slice(0, -1);
  expect(words).toEqual(["-X", "POST", "http://localhost/a?b=c&d=$e", "-H", "Content-Type: application/json", "-H", "token: secret", "--data-raw", JSON.stringify({ text: "it's `$HOME` \"quoted\" \\ </script>\n" })]);
});

test("credentials and phone numbers are left out of a trace", () => {
  const secret = { token: "abc", nested: [{ apiKey: "k", Authorization: "Bearer abcdefgh", credential: "c" }], url: "wss://host/?token=abc&x=1", text: "cbt_AAAAAAAAAAAAAAAAAAAAAA tk_abc_def eyJhbGciOi.eyJzdWIi.sig" };
  expect(redact(secret)).toEqual({ token: "[redacted]", nested: [{ apiKey: "[redacted]", Authorization: "[redacted]", credential: "[redacted]" }], url: "wss://host/?token=[redacted]&x=1", text: "cbt_[redacted] tk_abc_[redacted] [redacted]" });
  expect(redact({ sdp: "a=ice-ufrag:abcd\r\na=ice-pwd:0123456789abcdef\r\n" })).toEqual({ sdp: "a=ice-ufrag:[redacted]\r\na=ice-pwd:[redacted]\r\n" });
  expect(redact({ token: "$CALLBACK_TOKEN", tokenType: "call", note: "no secret" })).toEqual({ token: "$CALLBACK_TOKEN", tokenType: "call", note: "no secret" });
  for (const [text, masked] of [
    ["call +493012345678 now", "call +********5678 now"], ["tel:+19005550100", "tel:+*******0100"], ["030 1234567", "*** ***4567"], ["sip:4711@pbx", "sip:4711@pbx"], ["(030) 123-4567", "(***) ***-4567"],
    ["2026-11-16", "2026-11-16"], ["127.0.0.1:3001", "127.0.0.1:3001"], ["1763280000000", "1763280000000"], ["ses_01a1e37a-8bbc-7345-a873-489008439192", "ses_01a1e37a-8bbc-7345-a873-489008439192"],
  ]) expect(redact(text)).toBe(masked);
  expect(redact({ target: "493012345678", count: "493012345678" })).toEqual({ target: "********5678", count: "493012345678" });
});

const hostile = `</script><img src=x onerror=alert(1)>"'&`;

test("a trace as HTML escapes everything", () => {
  const events = [event(hostile, 0, { kind: hostile, http: { method: hostile, url: hostile, headers: { [hostile]: hostile } }, data: { [hostile]: hostile } }), ...turn({ sent: { data: { chat: { text: hostile } } }, request: { data: { part: hostile } } }), event("part 2", 9_000, { ids: ["request:X"], after: ["request:W"] })];
  const html = traceAsHtml({ ...createTrace(hostile, 0, events), exportedAt: hostile }, []);
  expect(html.match(/<(script|img)\b/gi)).toBeNull();
  expect(html).toContain("&#60;/script&#62;&#60;img src=x onerror=alert(1)&#62;&#34;&#39;&#38;");
});

test("a file that is not a trace is explained", () => {
  const trace = createTrace("s", 5, turn());
  expect(parseTrace(JSON.stringify(trace))).toEqual(trace);
  for (const [text, message] of [
    ["", /not JSON/], ["null", /not a trace/], ["{}", /not a trace/], [JSON.stringify({ ...trace, version: 2 }), /version 2/],
    [JSON.stringify({ ...trace, events: [trace.events[0], { ...trace.events[0], lane: "x" }] }), /Event 2/],
    [JSON.stringify({ ...trace, events: [{ ...trace.events[0], ids: "x" }] }), /Event 1/],
    [JSON.stringify({ ...trace, events: [{ ...trace.events[0], http: {} }] }), /Event 1/],
    [JSON.stringify({ ...trace, events: [null] }), /Event 1/],
  ] as const) expect(() => parseTrace(text)).toThrow(message);
});
