// @vitest-environment jsdom
import { createElement, StrictMode } from "react";
import { createRoot, type Root } from "react-dom/client";
import { afterEach, beforeEach, expect, inject, test, vi } from "vitest";
import { WebSocket } from "ws";
import { type TelapiState, useTelapi } from "../../src/react.js";
import type { ConnectOptions } from "../../src/index.js";
import { Service } from "./service.js";

const service = Service.at(inject("service"));
let root: Root;
let shown: TelapiState; // by the last rendering

beforeEach(() => {
  root = createRoot(document.createElement("div"));
  shown = {} as TelapiState; // not of the previous test
});
afterEach(() => root.unmount());

function Component({ options, id }: { options: ConnectOptions | undefined; id: number }): null {
  shown = useTelapi(options, id);
  return null;
}

// In strict mode, React mounts every component twice.
const render = (options: ConnectOptions | undefined, id = 1) => root.render(createElement(StrictMode, null, createElement(Component, { options, id })));
const until = (check: () => void) => vi.waitFor(check, { timeout: 60_000, interval: 20 });
const texts = () => shown.messages.map(({ direction, chat }) => [direction, chat?.text]);

test("the component shows the state and both sides of the conversation", async () => {
  const issue = vi.fn(() => service.issue());
  render({ issue, WebSocket });
  await until(() => expect(shown.state).toBe("connected"));
  expect(issue).toHaveBeenCalledTimes(1);
  await shown.send("chat", { text: "Good day" });
  await until(() => expect(texts()).toEqual([["to_ari", "Good day"], ["to_browser", "Good day"]]));
  shown.session!.cut();
  await until(() => expect(shown.state).toBe("cut"));
  void shown.send("chat", { text: "later" });
  shown.session!.resume();
  await until(() => expect(texts().slice(2)).toEqual([["to_ari", "later"], ["to_browser", "later"]]));
  expect(shown).toMatchObject({ textChat: true, incomplete: false });
  await shown.send("chat", { text: "/mute" });
  await until(() => expect(shown.textChat).toBe(false));
});

test("a new key opens another session, new options alone don't", async () => {
  const issue = vi.fn(() => service.issue());
  render({ issue, WebSocket });
  await until(() => expect(shown.state).toBe("connected"));
  const first = shown.session!;
  await shown.send("chat", { text: "first" });
  render({ issue, WebSocket, minDelayMs: 1 });
  render({ issue, WebSocket }, 2);
  await until(() => expect([shown.session === first, shown.state]).toEqual([false, "connected"]));
  expect(first.state).toBe("ended");
  expect(shown.messages).toEqual([]);
  expect(issue).toHaveBeenCalledTimes(2);
});

test("without options, no session is opened", async () => {
  render(undefined);
  await until(() => expect(shown.state).toBe("idle"));
  await expect(shown.send("chat", { text: "hello?" })).rejects.toThrow("No session");
  render({ issue: () => service.issue(), WebSocket });
  await until(() => expect(shown.state).toBe("connected"));
  const { session } = shown;
  render(undefined);
  await until(() => expect([shown.state, session!.state]).toEqual(["idle", "ended"]));
});

test("a loss of messages and the end of a session are shown", async () => {
  render({ issue: () => service.issue(), WebSocket, from: { streamId: "garbage", connectionId: "none" } });
  await until(() => expect(shown.incomplete).toBe(true));
  void shown.send("chat", { text: "/end" }); // the session may end before the acknowledgement
  await until(() => expect([shown.state, shown.reason?.code]).toEqual(["ended", "SESSION_ENDED"]));
});
