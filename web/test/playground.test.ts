import { expect, inject, test } from "vitest";
import { highest, Playground, Setup, startService } from "./browser.js";

const setup = new Setup();
const open = (options = {}) => setup.open(options);

test("the committed build is up to date", () => {
  expect(inject("stale"), "web/dist was stale and has been rebuilt: commit it").toEqual([]);
});

test("a denied transfer is shown with its reason and can be inspected with the keyboard", async () => {
  await using playground = await setup.start();
  await playground.send("transfer me abroad");
  await playground.message("A transfer was denied: target_not_allowed").waitFor();
  const denied = playground.timelineEvent("transfer denied: target_not_allowed");
  expect(await denied.locator("strong").textContent()).toBe("denied");

  await playground.click("Kinds: 3 hidden");
  await playground.click("None");
  await playground.page.getByRole("checkbox", { name: "denied" }).check();
  await playground.checkAccessible("kinds");
  await playground.page.keyboard.press("Escape");
  expect(await playground.page.getByRole("list", { name: "Timeline" }).getByRole("button").count()).toBe(1);
  await playground.page.getByRole("list", { name: "Timeline" }).focus();
  await playground.page.keyboard.press("ArrowDown");
  await playground.page.keyboard.press("Enter");
  await playground.click("Copy JSON");
  await playground.page.getByRole("button", { name: "Copied" }).waitFor();
  const copied = JSON.parse(await playground.copied()) as { data: { reason: string } };
  expect(copied.data.reason).toBe("target_not_allowed");
  await playground.page.keyboard.press("Escape");
  await playground.page.getByRole("region", { name: "transfer denied" }).waitFor({ state: "hidden" });
  expect(await denied.evaluate((row) => row === document.activeElement)).toBe(true);
});

test("the page reconnects when the server drops the connection", async () => {
  await using playground = await setup.start();
  await playground.disturb("Drop on server");
  await playground.message("Reconnected").first().waitFor();
  await playground.timelineEvent("connection lost").first().waitFor();
  await playground.click("hello");
  await playground.message("Hello! How are you?").waitFor();
});

test("the message box is disabled while text chat is disabled", async () => {
  await using playground = await setup.start();
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
  await using playground = await setup.start();
  await playground.click("hang up");
  await playground.waitForState("Ended");
  await playground.message("The session has ended").waitFor();
  await playground.start();
  await playground.click("Disconnect");
  await playground.waitForState("Ended");
});

test("an invalid key is explained", async () => {
  await using playground = await open();
  await playground.page.getByText("Mode, identity and key").click();
  await playground.page.getByLabel("API key").fill("tk_AAAAAAAAAAAAAAAAAAAA_not-a-key");
  await playground.connect();
  await playground.page.getByRole("alert").filter({ hasText: /\w.*HTTP 401 · UNAUTHORIZED · request / }).waitFor();
  playground.expected = /401/;
});

test("a disabled mode is not offered", async ({ expect }) => {
  await using serviceWithoutWebRTC = await startService({ FEATURE_WEBRTC: "false" });
  await using playground = await Playground.open(setup.browser, serviceWithoutWebRTC);
  expect(await playground.page.locator("#modes label").allTextContents()).toEqual(["audio", "chat"]);
  expect(await playground.page.locator("#modes input:checked").inputValue()).toBe("audio");
  await playground.click("Call");
  await playground.page.getByText(/^In a call, 0:/).waitFor();
});

test("speech is decoded, drawn and counted, and cached the second time", async ({ expect }) => {
  await using service = await startService(); // with an empty cache
  await using playground = await Playground.open(setup.browser, service);
  const loudest = await highest(playground.page, "Level of the bot");
  await playground.start("audio");
  const drawnHeight = () => playground.page.locator("#wave").evaluate((canvas: HTMLCanvasElement) => {
    const { data } = canvas.getContext("2d")!.getImageData(0, 0, canvas.width, canvas.height);
    const rowBytes = 4 * canvas.width;
    const drawnRows = Array.from({ length: canvas.height }, (_, y) => data.subarray(y * rowBytes, (y + 1) * rowBytes).some((value) => value > 0));
    return drawnRows.filter(Boolean).length / canvas.height;
  });
  const speak = async () => {
    for (const round of [1, 2]) {
      await playground.click("speak");
      await playground.message("This sentence is synthesized once").nth(round - 1).waitFor();
      await playground.timelineEvent(round === 1 ? "speech synthesized" : "speech from media cache").last().waitFor();
      await playground.timelineEvent("plays: This sentence").nth(round - 1).waitFor(); // the next message interrupts it
    }
  };
  await Promise.all([speak(), expect.poll(drawnHeight).toBeGreaterThan(0.2)]); // while something is played
  await expect.poll(loudest).toBeGreaterThan(30);
  await playground.click("Turn sound off");
  await playground.click("Turn sound on");
  await playground.showTab("Usage");
  await expect.poll(() => playground.page.locator("#hits").textContent()).toMatch(/^[1-9]/);
  await playground.page.getByRole("img", { name: /\d characters billed, [1-9]\d* from the cache/ }).waitFor();
  await playground.page.waitForFunction(() => document.querySelector("#cached")!.textContent !== "0");
});

test("a usage report without data says how to get some", async () => {
  await using playground = await open();
  const { page } = playground;
  await page.route(/\/usage\/tts-characters/, (route) => route.fulfill({ json: { total: { characters: 0, billedCharacters: 0, cachedCharacters: 0 }, buckets: [] } }));
  await playground.showTab("Usage");
  await page.locator("#tab-usage").getByText("No speech yet. Say speak.").waitFor();
  await playground.checkAccessible("usage-empty");
});

test("the conversation stays scrolled to its end when the session panel grows in the frame of a message", async ({ expect }) => {
  await using playground = await open();
  const { page } = playground;
  await playground.start("chat");
  const left = () => page.locator("#chat").evaluate(({ scrollHeight, scrollTop, clientHeight }) => scrollHeight - scrollTop - clientHeight);
  await page.evaluate(() => {
    const chat = document.getElementById("chat")!;
    const list = document.getElementById("messages")!;
    for (let i = 0; i < 40; i++) list.append(Object.assign(document.createElement("li"), { textContent: "message" }));
    chat.scrollTop = chat.scrollHeight;
  });
  await page.waitForFunction(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))); // it is laid out
  await page.evaluate(() => {
    const chat = document.getElementById("chat")!;
    document.getElementById("messages")!.append(Object.assign(document.createElement("li"), { textContent: "Goodbye." }));
    chat.scrollTop = chat.scrollHeight;
    document.getElementById("rejection")!.hidden = false;
    document.getElementById("rejection")!.style.height = "100px";
  });
  await page.waitForFunction(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true)))));
  await expect.poll(left).toBeLessThan(2);
});

test("the usage is read again while it is visible", async ({ expect }) => {
  await using playground = await open();
  const { page } = playground;
  let characters = 1;
  await page.route(/\/usage\/tts-characters/, (route) => route.fulfill({ json: { total: { characters, billedCharacters: characters, cachedCharacters: 0 }, buckets: [] } }));
  await page.clock.install();
  await playground.showTab("Usage");
  await expect.poll(() => page.locator("#characters").textContent()).toBe("1");
  expect(await page.getByText("No speech yet").isVisible()).toBe(false);
  characters = 2;
  await page.clock.fastForward(10_000);
  await expect.poll(() => page.locator("#characters").textContent()).toBe("2");
});

test("the timeline reconnects after a rate limit", async () => {
  await using playground = await open();
  let requests = 0;
  await playground.page.route(/\/playground\/feed/, (route) =>
    requests++ ? route.continue() : route.fulfill({ status: 429, json: { error: { code: "RATE_LIMIT_EXCEEDED", message: "Slow down." } } }));
  await playground.start();
  await playground.timelineEvent("service to runtime: session").first().waitFor();
  expect(await playground.page.getByRole("alert").count()).toBe(0);
  playground.expected = /429/;
});

test("the keyboard focus is never lost", async ({ expect }) => {
  await using playground = await open();
  const focus = (name: string) => expect.poll(() => playground.page.evaluate(() => document.activeElement!.textContent || document.activeElement!.id)).toBe(name);
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
  await focus("Call");
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
  expect(await page.getByRole("tabpanel", { name: "Admin" }).isVisible()).toBe(true);
  await page.keyboard.press("ArrowRight");
  expect(await selected()).toBe("Talk");
  await page.setViewportSize({ width: 1440, height: 900 });
  await page.getByRole("tabpanel", { name: "Timeline" }).waitFor();
  expect([await page.getByRole("log").isVisible(), await page.getByRole("tab", { name: "Talk" }).isVisible()]).toEqual([true, false]);
});

test("the timeline can be paused and cleared", async () => {
  await using playground = await setup.start();
  await playground.click("Pause");
  const before = await playground.page.locator("#timeline li").count();
  await playground.click("hello");
  await playground.message("Hello! How are you?").waitFor();
  expect(await playground.page.locator("#timeline li").count()).toBe(before);
  await playground.click("Pause");
  await playground.timelineEvent("Hello! How are you?").first().waitFor();
  await playground.page.locator("#timeline li").evaluateAll((rows) => rows.forEach((row) => (row.dataset.old = "")));
  await playground.click("Clear");
  expect(await playground.page.locator("#timeline [data-old]").count()).toBe(0); // new ones may have arrived
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
  playground.expected = /ERR_FAILED/;
});

test("right-to-left text is displayed correctly", async () => {
  await using playground = await setup.start();
  await playground.send("שלום!");
  const direction = (text: string) => playground.message(text).first().locator("p").evaluate((p) => getComputedStyle(p).direction);
  expect([await direction("שלום!"), await direction("Hello")]).toEqual(["rtl", "ltr"]);
});

test("no elements overlap at 320 pixels width", async () => {
  await using playground = await open({ viewport: { width: 320, height: 640 } });
  const overlapping = (bar: string) =>
    playground.page.locator(bar).evaluate((element) => {
      const parts = [...element.children].map((part) => part as HTMLElement).filter((part) => part.offsetWidth && getComputedStyle(part).position === "static");
      const [boxes, edge] = [parts.map((part) => part.getBoundingClientRect()), element.getBoundingClientRect().right];
      return parts.filter((part, index) => part.scrollWidth > part.clientWidth || boxes[index]!.right > edge || boxes.some((box, other) => other > index && box.left < boxes[index]!.right && box.top < boxes[index]!.bottom && box.bottom > boxes[index]!.top)).map(({ outerHTML }) => outerHTML);
    });
  await playground.start();
  await playground.storedEvent("service to runtime: session").first().waitFor({ state: "attached" });
  await playground.page.context().setOffline(true);
  await playground.disturb("Cut connection");
  await playground.disturb("Resume");
  await playground.waitForState("Offline, waiting for the network");
  await playground.screenshot("playground-320-offline");
  expect(await overlapping("header")).toEqual([]);
  await playground.showTab("Timeline");
  await playground.timelineEvent("service to runtime: session").first().waitFor();
  expect(await overlapping("#tab-timeline > .bar")).toEqual([]);
  expect(await playground.page.locator("#timeline").evaluate((list) => list.scrollWidth <= list.clientWidth)).toBe(true);
  await playground.screenshot("playground-320-timeline");
  playground.expected = /ERR_INTERNET_DISCONNECTED/;
});

test("accessible in light and dark, and on a phone", async () => {
  await using playground = await open();
  const { page } = playground;
  await playground.start("audio");
  await playground.send("hello");
  await playground.message("Hello! How are you?").waitFor();
  await playground.send("transfer me abroad");
  await playground.message("A transfer was denied").waitFor();
  for (const [name, colorScheme, width] of [["light", "light", 1440], ["dark", "dark", 1440], ["phone", "light", 375]] as const) {
    await page.emulateMedia({ colorScheme });
    await page.setViewportSize({ width, height: 900 });
    for (const panel of await page.getByRole("tab").allTextContents()) {
      await playground.showTab(panel);
      if (panel === "Timeline" && name === "light") await playground.timelineEvent("transfer denied: target_not_allowed").click();
      await playground.checkAccessible(panel === "Timeline" ? `playground-${name}` : `playground-${name}-${panel.toLowerCase()}`);
    }
  }
});
