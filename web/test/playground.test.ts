import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import type { AxeResults } from "axe-core";
import type { Browser } from "playwright-core";
import { afterAll, beforeAll, expect, inject, test } from "vitest";
import { launch, Service, Visit } from "./browser.js";

let browser: Browser;
let service: Service;

beforeAll(async () => {
  [browser, service] = await Promise.all([launch(), Service.start()]);
});
afterAll(async () => {
  await browser?.close();
  await service?.[Symbol.asyncDispose]();
});

const visit = (options = {}) => Visit.start(browser, service, options);

test("the committed build is up to date", () => {
  expect(inject("stale"), "web/dist was stale and has been built anew: commit it").toEqual([]);
});

test("the bot answers a greeting through the webhook", async () => {
  await using it = await visit();
  await it.begin();
  await it.click("hello");
  await it.said("Hello! How are you?").waitFor();
  await it.said("hello").filter({ hasText: "acknowledged" }).waitFor();
  for (const step of ["browser to service: frame", "service to runtime: frame", "runtime to bot: http", "bot to service: callback", "service to bot: callback", "service to browser: frame"]) {
    await it.happened(step).first().waitFor();
  }
});

test("a denied transfer is shown with its reason and can be inspected with the keyboard", async () => {
  await using it = await visit();
  await it.begin();
  await it.say("transfer me abroad");
  await it.said("A transfer was denied: target_not_allowed").waitFor();
  const denied = it.happened("transfer denied: target_not_allowed");
  expect(await denied.locator("strong").textContent()).toBe("denied");

  await it.page.getByRole("combobox", { name: "Kind" }).selectOption("denied");
  expect(await it.page.getByRole("list", { name: "Timeline" }).getByRole("button").count()).toBe(1);
  await it.page.getByRole("list", { name: "Timeline" }).focus();
  await it.page.keyboard.press("ArrowDown");
  await it.page.keyboard.press("Enter");
  await it.click("Copy JSON");
  await it.page.getByRole("button", { name: "Copied" }).waitFor();
  const copied = JSON.parse(await it.page.evaluate(() => navigator.clipboard.readText())) as { data: { reason: string } };
  expect(copied.data.reason).toBe("target_not_allowed");
  await it.page.keyboard.press("Escape");
  await it.page.getByRole("region", { name: "transfer denied" }).waitFor({ state: "hidden" });
  expect(await denied.evaluate((row) => row === document.activeElement)).toBe(true);
});

test("a cut connection resumes without loss or duplicates", async () => {
  await using it = await visit();
  await it.begin();
  await it.click("Cut connection");
  await it.state("Connection cut");
  for (const n of [1, 2, 3]) await service.send(await it.sessionId(), "chat", { text: `missed ${n}` });
  for (const n of [1, 2, 3]) await it.say(`said ${n}`);
  expect(await it.said("sending…").count()).toBe(3);

  await it.click("Resume");
  await it.state("Connected");
  for (const n of [1, 2, 3]) await it.said(`You said "said ${n}"`).waitFor();
  expect(await it.said("acknowledged").count()).toBe(3);
  const texts = await it.page.locator("#chat li p").allTextContents();
  expect(texts.filter((text) => /^missed/.test(text))).toEqual(["missed 1", "missed 2", "missed 3"]);
  expect(texts.filter((text) => /^You said/.test(text)).map((text) => text.slice(0, 17))).toEqual(['You said "said 1"', 'You said "said 2"', 'You said "said 3"']);
});

test("every phrase works", async () => {
  await using it = await visit();
  await it.begin();
  for (const [phrase, ...answers] of [
    ["help", "I understand:"],
    ["fail", "The bot could not answer"],
    ["out of order", "This is the first answer, posted last.", "This is the second answer, posted first and parked."],
    ["be silent", "I will be silent", "The bot is still thinking.", "The bot did not answer in time."],
    ["transfer me", "I will transfer you now.", "The call is transferred to tel:+493012345678."],
  ] as const) {
    await it.click(phrase);
    for (const answer of answers) await it.said(answer).first().waitFor();
    await it.keep(`phrase-${phrase.replaceAll(" ", "-")}`);
  }
  const texts = (await it.page.locator("#chat li").allTextContents()).join();
  expect(texts.indexOf("first answer")).toBeLessThan(texts.indexOf("second answer"));
  expect(await it.happened("command transfer").first().locator("strong").textContent()).toBe("allowed");
  await it.state("Ended");
});

test("the page reconnects when the server drops the connection", async () => {
  await using it = await visit();
  await it.begin();
  await it.click("Drop on server");
  await it.said("Reconnected").waitFor();
  await it.happened("connection lost").waitFor();
  await it.click("hello");
  await it.said("Hello! How are you?").waitFor();
});

test("the message box is disabled while text chat is disabled", async () => {
  await using it = await visit();
  await it.begin();
  const message = it.page.getByRole("textbox", { name: "Message" });
  await service.send(await it.sessionId(), "control", { command: "disable_text_chat" });
  await it.said("The runtime disabled text chat").waitFor();
  expect([await message.isDisabled(), await message.getAttribute("placeholder")]).toEqual([true, "Text chat is disabled"]);
  expect(await it.page.getByRole("button", { name: "hello", exact: true }).isDisabled()).toBe(true);
  await service.send(await it.sessionId(), "control", { command: "enable_text_chat" });
  await it.said("The runtime enabled text chat").waitFor();
  expect(await message.isEnabled()).toBe(true);
});

test("a new session can start after the bot or the page ended the previous one", async () => {
  await using it = await visit();
  await it.begin();
  await it.click("hang up");
  await it.state("Ended");
  await it.said("The session has ended").waitFor();
  await it.begin();
  await it.click("Disconnect");
  await it.state("Ended");
});

test("an invalid key is explained", async () => {
  await using it = await visit();
  await it.page.getByText("Identity and key").click();
  await it.page.getByLabel("API key").fill("tk_AAAAAAAAAAAAAAAAAAAA_not-a-key");
  await it.connect();
  await it.page.getByRole("alert").filter({ hasText: /\w.*HTTP 401 · UNAUTHORIZED · request / }).waitFor();
  expect(it.complaints.splice(0).every((text) => text.includes("401"))).toBe(true);
});

test("a disabled mode is explained", async () => {
  await using without = await Service.start({ FEATURE_WEBRTC: "false" });
  await using it = await Visit.start(browser, without);
  await it.connect("webrtc");
  await it.page.getByRole("alert").filter({ hasText: /WebRTC.*HTTP 503/i }).waitFor();
  await it.state("Rejected");
  expect(it.complaints.splice(0).every((text) => text.includes("503"))).toBe(true);
});

test("speech is decoded, drawn and counted, and cached the second time", async ({ expect }) => {
  await using it = await visit();
  await it.begin("audio");
  for (const round of [1, 2]) {
    await it.click("speak");
    await it.said("This sentence is synthesized once").nth(round - 1).waitFor();
    await it.happened(round === 1 ? "speech synthesized" : "speech from media cache").last().waitFor();
  }
  await expect.poll(async () => Number(/^(\d+) frames/.exec((await it.page.locator("#heard").textContent())!)?.[1]), { timeout: 20_000 }).toBeGreaterThan(50);
  expect(await it.page.locator("#heard").textContent()).toMatch(/alaw 8 kHz, peak [1-9]/);
  const tallest = await it.page.locator("#wave").evaluate((canvas: HTMLCanvasElement) => {
    const { data } = canvas.getContext("2d")!.getImageData(canvas.width - 40, 0, 40, canvas.height);
    const inked = Array.from({ length: canvas.height }, (_, y) => data.subarray(y * 160, y * 160 + 160).some((value) => value > 0));
    return inked.filter(Boolean).length / canvas.height;
  });
  expect(tallest).toBeGreaterThan(0.2);
  await it.click("Mute");
  expect(await it.page.getByRole("button", { name: "Mute" }).getAttribute("aria-pressed")).toBe("true");
  await expect.poll(() => it.page.locator("#hits").textContent(), { timeout: 20_000 }).toMatch(/^[1-9]/);
  await it.page.getByRole("img", { name: /\d characters billed, [1-9]\d* from the cache/ }).waitFor();
  await it.page.waitForFunction(() => document.querySelector("#cached")!.textContent !== "0");
});

test("the usage chart shows the latest selection even if responses arrive late", async ({ expect }) => {
  await using it = await visit();
  const answer = (name: string) => ({ json: { total: { characters: 1, billedCharacters: 1, cachedCharacters: 0 }, buckets: [{ start: "2030-01", group: name, characters: 1, billedCharacters: 1, cachedCharacters: 0 }] } });
  let release = () => {};
  const slow = new Promise<void>((done) => (release = done));
  await it.page.route(/usage\/tts-characters\?/, async (route) => {
    const group = new URL(route.request().url()).searchParams.get("groupBy")!;
    if (group === "voice") await slow;
    await route.fulfill(answer(`by ${group}`));
  });
  const grouping = it.page.locator("#grouping");
  const asked = it.page.waitForRequest(/groupBy=voice/);
  await grouping.selectOption("voice");
  await asked;
  await grouping.selectOption("model");
  await it.page.locator("#chart", { hasText: "by model" }).waitFor();
  const late = it.page.waitForResponse(/groupBy=voice/);
  release();
  await (await late).finished();
  await it.page.evaluate(() => new Promise(requestAnimationFrame));
  expect(await it.page.locator("#chart").textContent()).toContain("by model");
});

test("the timeline reconnects after a rate limit", async () => {
  await using it = await visit();
  let refused = 0;
  await it.page.route(/\/playground\/feed/, (route) =>
    refused++ ? route.continue() : route.fulfill({ status: 429, json: { error: { code: "RATE_LIMIT_EXCEEDED", message: "Slow down." } } }));
  await it.begin();
  await it.happened("service to runtime: session").first().waitFor();
  expect(await it.page.getByRole("alert").count()).toBe(0);
  expect(it.complaints.splice(0).every((text) => text.includes("429"))).toBe(true);
});

test("digits are collected from the keypad", async () => {
  await using it = await visit();
  await it.begin();
  await it.click("call me slowly");
  await it.said("Press up to four keys").waitFor();
  for (const key of ["4", "2", "#"]) await it.click(key);
  await it.said("Digits submitted: 42").waitFor();
  await it.said("You pressed 4 2.").waitFor();
});

test("the keyboard focus is never lost", async ({ expect }) => {
  await using it = await visit();
  const focus = (name: string) => expect.poll(() => it.page.evaluate(() => document.activeElement!.textContent), { timeout: 20_000 }).toBe(name);
  await it.begin();
  await focus("Disconnect");
  await it.click("Cut connection");
  await focus("Resume");
  await it.page.keyboard.press("Enter");
  await it.said("nothing missed").waitFor();
  await focus("Cut connection");
  await it.click("Disconnect");
  await it.state("Ended");
  await focus("Connect");
});

test("speech events stay in chronological order", async () => {
  await using it = await visit();
  await it.begin("audio");
  await it.page.waitForFunction(() => document.querySelector("#heard")!.textContent!.includes("frames"));
  await it.click("Clear"); // what is left of the speech is the first row
  await it.happened("audio").first().waitFor();
  await service.send(await it.sessionId(), "chat", { text: "meanwhile" });
  await it.happened("meanwhile").nth(1).waitFor();
  const times = await it.page.locator("#timeline time").allTextContents();
  expect(times).toEqual(times.toSorted());
});

test("the timeline can be paused and cleared", async () => {
  await using it = await visit();
  await it.begin();
  await it.click("Pause");
  const before = await it.page.locator("#timeline li").count();
  await it.click("hello");
  await it.said("Hello! How are you?").waitFor();
  expect(await it.page.locator("#timeline li").count()).toBe(before);
  await it.click("Pause");
  await it.happened("Hello! How are you?").first().waitFor();
  await it.click("Clear");
  expect(await it.page.locator("#timeline li").count()).toBe(0);
});

test("the page works without local storage", async () => {
  await using it = await visit();
  await it.page.addInitScript(() =>
    Object.defineProperty(window, "localStorage", { get: () => { throw new DOMException("Access is denied.", "SecurityError"); } }));
  await it.page.reload();
  await it.begin();
  await it.page.getByRole("combobox", { name: "Theme" }).selectOption("dark");
  expect(await it.page.evaluate(() => document.documentElement.style.colorScheme)).toBe("dark");
});

test("an unreachable service is reported", async () => {
  await using it = await visit();
  await it.page.route(/\/sessions\/token/, (route) => route.abort());
  await it.connect();
  await it.page.getByRole("alert").filter({ hasText: "The service could not be reached." }).waitFor();
  expect(it.complaints.splice(0).every((text) => text.includes("ERR_FAILED"))).toBe(true);
});

test("a late confirmation is reported as not sent", async () => {
  await using it = await visit();
  await it.begin();
  await service.send(await it.sessionId(), "action", { name: "confirm", command: { type: "hangup" } });
  await it.said("Do you agree to a hangup?").waitFor();
  await it.click("Disconnect");
  await it.state("Ended");
  await it.click("Confirm");
  await it.said("Not sent: The session").waitFor();
});

test("right-to-left text is displayed correctly", async () => {
  await using it = await visit();
  await it.begin();
  await it.say("שלום!");
  const direction = (text: string) => it.said(text).first().locator("p").evaluate((p) => getComputedStyle(p).direction);
  expect([await direction("שלום!"), await direction("Hello")]).toEqual(["rtl", "ltr"]);
});

test.each([320, 375])("no elements overlap at %i pixels width", async (width) => {
  await using it = await visit({ viewport: { width, height: 640 } });
  const crowded = (bar: string) =>
    it.page.locator(bar).evaluate((element) => {
      const parts = [...element.children].map((part) => part as HTMLElement).filter((part) => part.offsetWidth && getComputedStyle(part).position === "static");
      const [boxes, edge] = [parts.map((part) => part.getBoundingClientRect()), element.getBoundingClientRect().right];
      return parts.filter((part, at) => part.scrollWidth > part.clientWidth || boxes[at]!.right > edge || boxes.some((box, other) => other > at && box.left < boxes[at]!.right && box.top < boxes[at]!.bottom && box.bottom > boxes[at]!.top)).map(({ outerHTML }) => outerHTML);
    });
  await it.begin();
  await it.page.context().setOffline(true);
  await it.click("Cut connection");
  await it.click("Resume");
  await it.state("Offline, waiting for the network");
  await it.keep(`playground-${width}-offline`);
  expect(await crowded("header")).toEqual([]);
  await it.click("Timeline");
  await it.happened("service to runtime: session").first().waitFor();
  expect(await crowded("[data-column=watch] > .bar")).toEqual([]);
  expect(await it.page.locator("#timeline").evaluate((list) => list.scrollWidth <= list.clientWidth)).toBe(true);
  await it.keep(`playground-${width}-timeline`);
  it.complaints.splice(0); // errors of the missing network
});

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

test.each([
  ["light", { colorScheme: "light" }],
  ["dark", { colorScheme: "dark" }],
  ["phone", { viewport: { width: 375, height: 812 }, deviceScaleFactor: 2 }],
] as const)("accessible: %s", async (name, options) => {
  await using it = await visit(options);
  await it.begin("audio");
  await it.say("hello");
  await it.said("Hello! How are you?").waitFor();
  await it.say("transfer me abroad");
  await it.said("A transfer was denied").waitFor();
  for (const panel of name === "phone" ? ["Talk", "Timeline", "Speech"] : [""]) {
    if (panel) await it.click(panel);
    if (panel !== "Talk" && panel !== "Speech") await it.happened("transfer denied: target_not_allowed").click();
    await it.page.evaluate(axe);
    const { violations } = (await it.page.evaluate("axe.run()")) as AxeResults;
    expect(violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html).join(" ")}`)).toEqual([]);
    expect(await it.page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "nothing sticks out").toBe(true);
    await it.keep(`playground-${name}${panel && `-${panel.toLowerCase()}`}`);
  }
});
