import type { WebSocketRoute } from "playwright-core";
import { expect, inject, test } from "vitest";
import { Playground, Setup, startService } from "./browser.js";

const setup = new Setup();
const open = (options = {}) => setup.open(options);

test("the committed build is up to date", () => {
  expect(inject("stale"), "web/dist was stale and has been rebuilt: commit it").toEqual([]);
});

test("the bot answers a greeting through the webhook", async () => {
  await using playground = await open();
  await playground.start();
  await playground.click("hello");
  await playground.message("Hello! How are you?").waitFor();
  await playground.message("hello").filter({ hasText: "acknowledged" }).waitFor();
  for (const step of ["browser to service: frame", "service to runtime: frame", "runtime to bot: http", "bot to service: callback", "service to bot: callback", "service to browser: frame"]) {
    await playground.timelineEvent(step).first().waitFor();
  }
});

test("a denied transfer is shown with its reason and can be inspected with the keyboard", async () => {
  await using playground = await open();
  await playground.start();
  await playground.send("transfer me abroad");
  await playground.message("A transfer was denied: target_not_allowed").waitFor();
  const denied = playground.timelineEvent("transfer denied: target_not_allowed");
  expect(await denied.locator("strong").textContent()).toBe("denied");

  await playground.page.getByRole("combobox", { name: "Kind" }).selectOption("denied");
  expect(await playground.page.getByRole("list", { name: "Timeline" }).getByRole("button").count()).toBe(1);
  await playground.page.getByRole("list", { name: "Timeline" }).focus();
  await playground.page.keyboard.press("ArrowDown");
  await playground.page.keyboard.press("Enter");
  await playground.click("Copy JSON");
  await playground.page.getByRole("button", { name: "Copied" }).waitFor();
  const copied = JSON.parse(await playground.page.evaluate(() => navigator.clipboard.readText())) as { data: { reason: string } };
  expect(copied.data.reason).toBe("target_not_allowed");
  await playground.page.keyboard.press("Escape");
  await playground.page.getByRole("region", { name: "transfer denied" }).waitFor({ state: "hidden" });
  expect(await denied.evaluate((row) => row === document.activeElement)).toBe(true);
});

test("a cut connection resumes without loss or duplicates", async () => {
  await using playground = await open();
  await playground.start();
  await playground.disturb("Cut connection");
  await playground.waitForState("Connection cut");
  for (const n of [1, 2, 3]) await setup.service.send(await playground.sessionId(), "chat", { text: `missed ${n}` });
  for (const n of [1, 2, 3]) await playground.send(`said ${n}`);
  expect(await playground.message("sending…").count()).toBe(3);

  await playground.disturb("Resume");
  await playground.waitForState("Connected");
  for (const n of [1, 2, 3]) await playground.message(`You said "said ${n}"`).waitFor();
  expect(await playground.message("acknowledged").count()).toBe(3);
  const texts = await playground.page.locator("#chat li p").allTextContents();
  expect(texts.filter((text) => /^missed/.test(text))).toEqual(["missed 1", "missed 2", "missed 3"]);
  expect(texts.filter((text) => /^You said/.test(text)).map((text) => text.slice(0, 17))).toEqual(['You said "said 1"', 'You said "said 2"', 'You said "said 3"']);
});

test("the page reconnects when the server drops the connection", async () => {
  await using playground = await open();
  await playground.start();
  await playground.disturb("Drop on server");
  await playground.message("Reconnected").waitFor();
  await playground.timelineEvent("connection lost").waitFor();
  await playground.click("hello");
  await playground.message("Hello! How are you?").waitFor();
});

test("the message box is disabled while text chat is disabled", async () => {
  await using playground = await open();
  await playground.start();
  const input = playground.page.getByRole("textbox", { name: "Message" });
  await setup.service.send(await playground.sessionId(), "control", { command: "disable_text_chat" });
  await playground.message("The runtime disabled text chat").waitFor();
  expect([await input.isDisabled(), await input.getAttribute("placeholder")]).toEqual([true, "Text chat is disabled"]);
  expect(await playground.page.getByRole("button", { name: "hello", exact: true }).isDisabled()).toBe(true);
  await setup.service.send(await playground.sessionId(), "control", { command: "enable_text_chat" });
  await playground.message("The runtime enabled text chat").waitFor();
  expect(await input.isEnabled()).toBe(true);
});

test("a new session can start after the bot or the page ended the previous one", async () => {
  await using playground = await open();
  await playground.start();
  await playground.click("hang up");
  await playground.waitForState("Ended");
  await playground.message("The session has ended").waitFor();
  await playground.start();
  await playground.click("Disconnect");
  await playground.waitForState("Ended");
});

test("an invalid key is explained", async () => {
  await using playground = await open();
  await playground.page.getByText("Identity and key").click();
  await playground.page.getByLabel("API key").fill("tk_AAAAAAAAAAAAAAAAAAAA_not-a-key");
  await playground.connect();
  await playground.page.getByRole("alert").filter({ hasText: /\w.*HTTP 401 · UNAUTHORIZED · request / }).waitFor();
  expect(playground.errors.splice(0).every((text) => text.includes("401"))).toBe(true);
});

test("a disabled mode is explained", async () => {
  await using serviceWithoutWebRTC = await startService({ FEATURE_WEBRTC: "false" });
  await using playground = await Playground.open(setup.browser, serviceWithoutWebRTC);
  await playground.connect("webrtc");
  await playground.page.getByRole("alert").filter({ hasText: /WebRTC.*HTTP 503/i }).waitFor();
  await playground.waitForState("Rejected");
  expect(playground.errors.splice(0).every((text) => text.includes("503"))).toBe(true);
});

test("speech is decoded, drawn and counted, and cached the second time", async ({ expect }) => {
  await using service = await startService(); // with an empty cache
  await using playground = await Playground.open(setup.browser, service);
  await playground.start("audio");
  for (const round of [1, 2]) {
    await playground.click("speak");
    await playground.message("This sentence is synthesized once").nth(round - 1).waitFor();
    await playground.timelineEvent(round === 1 ? "speech synthesized" : "speech from media cache").last().waitFor();
  }
  await expect.poll(async () => Number(await playground.page.getByRole("meter", { name: "Level of the bot" }).getAttribute("aria-valuenow")), { timeout: 60_000, interval: 20 }).toBeGreaterThan(30);
  const drawnHeight = await playground.page.locator("#wave").evaluate((canvas: HTMLCanvasElement) => {
    const { data } = canvas.getContext("2d")!.getImageData(canvas.width - 40, 0, 40, canvas.height);
    const drawnRows = Array.from({ length: canvas.height }, (_, y) => data.subarray(y * 160, y * 160 + 160).some((value) => value > 0));
    return drawnRows.filter(Boolean).length / canvas.height;
  });
  expect(drawnHeight).toBeGreaterThan(0.2);
  await playground.click("Sound off");
  expect(await playground.page.getByRole("button", { name: "Sound off" }).getAttribute("aria-pressed")).toBe("true");
  await playground.showTab("Usage");
  await expect.poll(() => playground.page.locator("#hits").textContent(), { timeout: 60_000 }).toMatch(/^[1-9]/);
  await playground.page.getByRole("img", { name: /\d characters billed, [1-9]\d* from the cache/ }).waitFor();
  await playground.page.waitForFunction(() => document.querySelector("#cached")!.textContent !== "0");
});

test("the usage chart shows the latest selection even if responses arrive late", async ({ expect }) => {
  await using playground = await open();
  const report = (name: string) => ({ json: { total: { characters: 1, billedCharacters: 1, cachedCharacters: 0 }, buckets: [{ start: "2030-01", group: name, characters: 1, billedCharacters: 1, cachedCharacters: 0 }] } });
  let release = () => {};
  const released = new Promise<void>((done) => (release = done));
  await playground.page.route(/usage\/tts-characters\?/, async (route) => {
    const group = new URL(route.request().url()).searchParams.get("groupBy")!;
    if (group === "voice") await released;
    await route.fulfill(report(`by ${group}`));
  });
  await playground.showTab("Usage");
  const grouping = playground.page.locator("#grouping");
  const requested = playground.page.waitForRequest(/groupBy=voice/);
  await grouping.selectOption("voice");
  await requested;
  await grouping.selectOption("model");
  await playground.page.locator("#chart", { hasText: "by model" }).waitFor();
  const late = playground.page.waitForResponse(/groupBy=voice/);
  release();
  await (await late).finished();
  await playground.page.evaluate(() => new Promise(requestAnimationFrame));
  expect(await playground.page.locator("#chart").textContent()).toContain("by model");
});

test("the timeline reconnects after a rate limit", async () => {
  await using playground = await open();
  let requests = 0;
  await playground.page.route(/\/playground\/feed/, (route) =>
    requests++ ? route.continue() : route.fulfill({ status: 429, json: { error: { code: "RATE_LIMIT_EXCEEDED", message: "Slow down." } } }));
  await playground.start();
  await playground.timelineEvent("service to runtime: session").first().waitFor();
  expect(await playground.page.getByRole("alert").count()).toBe(0);
  expect(playground.errors.splice(0).every((text) => text.includes("429"))).toBe(true);
});

test("digits are collected from the keypad", async () => {
  await using playground = await open();
  await playground.start();
  await playground.click("call me slowly");
  await playground.message("Press up to four keys").waitFor();
  for (const key of ["4", "2", "#"]) await playground.click(key);
  await playground.message("Digits submitted: 42").waitFor();
  await playground.message("You pressed 4 2.").waitFor();
});

test("the keyboard focus is never lost", async ({ expect }) => {
  await using playground = await open();
  const focus = (name: string) => expect.poll(() => playground.page.evaluate(() => document.activeElement!.textContent || document.activeElement!.id), { timeout: 60_000 }).toBe(name);
  await playground.start();
  await focus("text"); // the message box
  await playground.showTab("Resilience");
  await playground.click("Cut connection");
  await focus("Resume");
  await playground.page.keyboard.press("Enter");
  await playground.message("nothing missed").waitFor();
  await focus("Cut connection");
  await playground.click("Disconnect");
  await playground.waitForState("Ended");
  await focus("Connect");
});

// Audio frames share the row of the first one. An event from between the frames that arrives late comes after that row.
test("rows with several audio frames stay in chronological order", async () => {
  await using playground = await open();
  let sendFeed = (_events: string) => {};
  const feed = new Promise<string>((done) => (sendFeed = done));
  await playground.page.route(/\/playground\/feed/, async (route) => route.fulfill({ body: await feed }));
  let socket: WebSocketRoute | undefined;
  await playground.page.routeWebSocket(/\/ws\/session/, (route) => {
    socket = route;
    route.connectToServer();
  });
  await playground.page.reload(); // WebSockets are routed from the next load on
  await playground.start();
  const sendAudio = () => socket!.send(JSON.stringify({ type: "audio", timestamp: 0, direction: "to_browser", audio: {} }));
  sendAudio();
  await playground.timelineEvent("service to browser: audio").waitFor();
  const at = Date.now();
  const timer = setInterval(sendAudio, 100);
  await playground.timelineEvent(/audio, [2-9]\d frames/).waitFor();
  clearInterval(timer);
  sendFeed(JSON.stringify({ at, lane: "runtime", kind: "timer", title: "between the frames", sessionId: "" }) + "\n");
  await playground.timelineEvent("between the frames").waitFor();
  const times = await playground.page.locator("#timeline time").allTextContents();
  expect(times).toEqual(times.toSorted());
});

test("the arrow keys select a tab, and the conversation stays visible when the window becomes wide", async () => {
  await using playground = await open({ viewport: { width: 390, height: 844 } });
  const { page } = playground;
  const selected = () => page.getByRole("tab", { selected: true }).textContent();
  expect(await selected()).toBe("Talk");
  await page.getByRole("tab", { selected: true }).focus();
  await page.keyboard.press("ArrowRight");
  expect([await selected(), await page.getByRole("log").isVisible()]).toEqual(["Timeline", false]);
  await page.keyboard.press("End");
  expect(await page.getByRole("tabpanel", { name: "Usage" }).isVisible()).toBe(true);
  await page.keyboard.press("ArrowRight");
  expect(await selected()).toBe("Talk");
  await page.setViewportSize({ width: 1440, height: 900 });
  await page.getByRole("tabpanel", { name: "Timeline" }).waitFor();
  expect([await page.getByRole("log").isVisible(), await page.getByRole("tab", { name: "Talk" }).isVisible()]).toEqual([true, false]);
});

test("the timeline can be paused and cleared", async () => {
  await using playground = await open();
  await playground.start();
  await playground.click("Pause");
  const before = await playground.page.locator("#timeline li").count();
  await playground.click("hello");
  await playground.message("Hello! How are you?").waitFor();
  expect(await playground.page.locator("#timeline li").count()).toBe(before);
  await playground.click("Pause");
  await playground.timelineEvent("Hello! How are you?").first().waitFor();
  await playground.click("Clear");
  expect(await playground.page.locator("#timeline li").count()).toBe(0);
});

test("the page works without local storage", async () => {
  await using playground = await open();
  await playground.page.addInitScript(() =>
    Object.defineProperty(window, "localStorage", { get: () => { throw new DOMException("Access is denied.", "SecurityError"); } }));
  await playground.page.reload();
  await playground.start();
  await playground.page.getByRole("combobox", { name: "Theme" }).selectOption("dark");
  expect(await playground.page.evaluate(() => document.documentElement.style.colorScheme)).toBe("dark");
});

test("an unreachable service is reported", async () => {
  await using playground = await open();
  await playground.page.route(/\/sessions\/token/, (route) => route.abort());
  await playground.connect();
  await playground.page.getByRole("alert").filter({ hasText: "The service could not be reached." }).waitFor();
  expect(playground.errors.splice(0).every((text) => text.includes("ERR_FAILED"))).toBe(true);
});

test("a late confirmation is reported as not sent", async () => {
  await using playground = await open();
  await playground.start();
  await setup.service.send(await playground.sessionId(), "action", { name: "confirm", command: { type: "hangup" } });
  await playground.message("Do you agree to a hangup?").waitFor();
  await playground.click("Disconnect");
  await playground.waitForState("Ended");
  await playground.click("Confirm");
  await playground.message("Not sent: The session").waitFor();
});

test("right-to-left text is displayed correctly", async () => {
  await using playground = await open();
  await playground.start();
  await playground.send("שלום!");
  const direction = (text: string) => playground.message(text).first().locator("p").evaluate((p) => getComputedStyle(p).direction);
  expect([await direction("שלום!"), await direction("Hello")]).toEqual(["rtl", "ltr"]);
});

test.each([320, 375])("no elements overlap at %i pixels width", async (width) => {
  await using playground = await open({ viewport: { width, height: 640 } });
  const overlapping = (bar: string) =>
    playground.page.locator(bar).evaluate((element) => {
      const parts = [...element.children].map((part) => part as HTMLElement).filter((part) => part.offsetWidth && getComputedStyle(part).position === "static");
      const [boxes, edge] = [parts.map((part) => part.getBoundingClientRect()), element.getBoundingClientRect().right];
      return parts.filter((part, index) => part.scrollWidth > part.clientWidth || boxes[index]!.right > edge || boxes.some((box, other) => other > index && box.left < boxes[index]!.right && box.top < boxes[index]!.bottom && box.bottom > boxes[index]!.top)).map(({ outerHTML }) => outerHTML);
    });
  await playground.start();
  await playground.page.context().setOffline(true);
  await playground.disturb("Cut connection");
  await playground.disturb("Resume");
  await playground.waitForState("Offline, waiting for the network");
  await playground.screenshot(`playground-${width}-offline`);
  expect(await overlapping("header")).toEqual([]);
  await playground.showTab("Timeline");
  await playground.timelineEvent("service to runtime: session").first().waitFor();
  expect(await overlapping("#tab-timeline > .bar")).toEqual([]);
  expect(await playground.page.locator("#timeline").evaluate((list) => list.scrollWidth <= list.clientWidth)).toBe(true);
  await playground.screenshot(`playground-${width}-timeline`);
  playground.errors.splice(0); // errors of the missing network
});

test.each([
  ["light", { colorScheme: "light" }],
  ["dark", { colorScheme: "dark" }],
  ["phone", { viewport: { width: 375, height: 812 }, deviceScaleFactor: 2 }],
] as const)("accessible: %s", async (name, options) => {
  await using playground = await open(options);
  await playground.start("audio");
  await playground.send("hello");
  await playground.message("Hello! How are you?").waitFor();
  await playground.send("transfer me abroad");
  await playground.message("A transfer was denied").waitFor();
  for (const panel of (await playground.page.getByRole("tab").allTextContents())) {
    await playground.showTab(panel);
    if (panel === "Timeline") await playground.timelineEvent("transfer denied: target_not_allowed").click();
    await playground.checkAccessible(panel === "Timeline" ? `playground-${name}` : `playground-${name}-${panel.toLowerCase()}`);
  }
});
