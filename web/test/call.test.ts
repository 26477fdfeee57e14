import { chromium } from "playwright-core";
import { expect, test } from "vitest";
import { highest, Playground, Setup, startService } from "./browser.js";
import { chromiumOptions } from "./chromium.js";

const setup = new Setup();

const [you, bot] = ["Level of your microphone", "Level of the bot"];
/** The value of a meter at -42 dB, well above noise. */
const audible = 30;

test.for(["webrtc", "audio"])("a call in mode %s: the bot hears the caller, repeats it, and can be interrupted", async (mode, { expect }) => {
  await using playground = await setup.open();
  const { page } = playground;
  const callState = page.locator("#call-state");
  await playground.chooseMode(mode);
  const speech = await highest(page, you);
  await playground.click("Call");
  await callState.filter({ hasText: "In a call" }).waitFor();
  await expect.poll(speech).toBeGreaterThan(audible);

  // The runtime has measured the same sound, and sends it back.
  const heard = playground.timelineEvent(/heard [\d.]+ s, level/);
  await heard.first().waitFor();
  expect(Number(/level \D?([\d.]+) dBFS/.exec((await heard.first().textContent())!)![1])).toBeLessThan(40); // below full scale
  await playground.message("I heard").first().waitFor();
  await playground.timelineEvent("repeats what it heard").first().waitFor();
  await expect.poll(await highest(page, bot)).toBeGreaterThan(audible);
  await playground.screenshot(`call-${mode}`);

  // A long answer is interrupted by the next sound, as the greeting may have been. The page counts it if it still has the sound in its levels: on a
  // busy machine perhaps that of a later answer.
  const before = await page.locator("#interruption").textContent();
  const interrupted = page.locator("#interruption").filter({ hasText: "You interrupted the bot", hasNotText: before || /$^/ });
  const interrupt = async () => (await interrupted.count()) > 0 || playground.send("help");
  await expect.poll(interrupt, { interval: 7_000 }).toBe(true); // the sound repeats every 6 seconds
  await playground.message("I understand:").first().waitFor();
  await playground.screenshot(`call-${mode}-interrupted`);

  await playground.disturb("Cut connection");
  await playground.waitForState("Connection cut");
  await callState.filter({ hasText: mode === "audio" ? /^The line is interrupted/ : /^In a call/ }).waitFor();
  await playground.disturb("Resume");
  await playground.waitForState("Connected");
  await callState.filter({ hasText: /^In a call, \d+:\d\d$/ }).waitFor();

  await playground.click("5");
  await playground.message("Digits submitted: 5").waitFor();
  if (mode === "webrtc") await playground.timelineEvent("digit 5 (RTP)").waitFor();

  await playground.click("Mute");
  await expect.poll(() => page.getByRole("meter", { name: you }).getAttribute("aria-valuenow")).toBe("0");
  await playground.click("Hang up");
  await callState.filter({ hasText: "The call has ended." }).waitFor();
  expect(await page.evaluate(() => document.activeElement!.textContent)).toBe("Call");

  // Then the page shows how long the answers took.
  expect(await page.getByRole("tab", { selected: true }).textContent()).toBe("Turns");
  const spoken = page.getByRole("list", { name: "Spoken turns" }).getByRole("button");
  await spoken.filter({ hasText: /spoke for \d\.\d s.*text [\d.]+ m?s, audio [\d.]+ m?s, playback/ }).first().waitFor();
  await page.locator("#voice-summary").filter({ hasText: /^\d+ answered, p50 [\d.]+ m?s, p95 [\d.]+ m?s$/ }).waitFor();
  await playground.checkAccessible(`call-${mode}-turns`);
  await playground.click("Call"); // again, in the same session
  await callState.filter({ hasText: "In a call" }).waitFor();
  await playground.click("Disconnect");
  await playground.waitForState("Ended");
  await callState.filter({ hasText: "The call has ended." }).waitFor();
});

test("a call is the default, chat is one click away, and the microphone has a level before the call", async ({ expect }) => {
  await using playground = await setup.open();
  const { page } = playground;
  expect(await page.getByRole("radio", { name: "webrtc", includeHidden: true }).isChecked()).toBe(true);
  await page.getByText("Microphone and speaker").click();
  const level = await highest(page, you);
  await playground.click("Test microphone");
  await expect.poll(level).toBeGreaterThan(audible);
  const microphones = page.getByRole("combobox", { name: "Microphone" });
  await expect.poll(() => microphones.getByRole("option").allTextContents()).toContain("Fake Audio Input 1");
  await microphones.selectOption({ index: 1 });
  const test = (pressed: boolean) => page.getByRole("button", { name: "Test microphone", pressed }).waitFor();
  await test(true); // again
  await playground.checkAccessible("devices");
  await playground.click("Test microphone");
  await test(false);
  expect(await page.getByRole("meter", { name: you, includeHidden: true }).getAttribute("aria-valuenow")).toBe("0");
  await playground.click("Chat");
  await playground.message("Hello, this is the demo bot").waitFor();
  expect(await page.locator("#session-summary").textContent()).toContain("chat");
  await playground.click("Disconnect");
  await playground.click("Call"); // with the chosen microphone
  await page.locator("#call-state").filter({ hasText: "In a call" }).waitFor();
});

test("a test of the microphone can be ended before the microphone is open", async ({ expect }) => {
  await using playground = await setup.open();
  const { page } = playground;
  await page.evaluate(() => {
    const { mediaDevices } = navigator;
    const open = mediaDevices.getUserMedia.bind(mediaDevices);
    const stream = new Promise<MediaStream>((done) => Object.assign(window, { allow: () => void open({ audio: true }).then(done) }));
    mediaDevices.getUserMedia = () => stream; // when the user allows it
    Object.assign(window, { ended: () => stream.then((stream) => stream.getTracks().every(({ readyState }) => readyState === "ended")) });
  });
  await page.getByText("Microphone and speaker").click();
  await playground.click("Test microphone");
  await playground.click("Test microphone");
  await page.evaluate("allow()");
  await expect.poll(() => page.evaluate("ended()")).toBe(true);
  await page.getByRole("button", { name: "Test microphone", pressed: false }).waitFor();
});

test.for(["Test microphone", "Call"])("a microphone whose sound cannot be processed is closed: %s", async (button, { expect }) => {
  await using playground = await setup.open();
  const { page } = playground;
  await page.evaluate(() => {
    const { mediaDevices } = navigator;
    const open = mediaDevices.getUserMedia.bind(mediaDevices);
    const tracks: MediaStreamTrack[] = [];
    mediaDevices.getUserMedia = async (constraints) => {
      const stream = await open(constraints);
      tracks.push(...stream.getTracks());
      return stream;
    };
    const AudioContext = class {
      constructor() {
        throw new Error("too many contexts");
      }
    };
    Object.assign(window, { AudioContext, states: () => tracks.map(({ readyState }) => readyState) });
  });
  await page.getByText("Microphone and speaker").click();
  await playground.click(button);
  await expect.poll(() => page.evaluate("states()")).toEqual(["ended"]);
  await page.getByText("too many contexts").first().waitFor();
  await page.getByRole("button", { name: "Test microphone", pressed: false }).waitFor();
});

test.each([["dark", { colorScheme: "dark" }], ["phone", { viewport: { width: 390, height: 844 }, deviceScaleFactor: 2 }]] as const)("accessible during a call: %s", async (name, options) => {
  await using playground = await setup.open(options);
  await playground.chooseMode("audio");
  await playground.click("Call");
  await playground.message("I heard").first().waitFor();
  await playground.checkAccessible(`call-${name}`);
});

test("after a reload, one click continues the call", async ({ expect }) => {
  await using playground = await setup.open();
  const { page } = playground;
  const callState = page.locator("#call-state");
  await playground.click("Call");
  await callState.filter({ hasText: "In a call" }).waitFor();
  const id = await playground.sessionId();
  await page.reload();
  await callState.filter({ hasText: "The reload ended the call. Press Call to go on talking." }).waitFor();
  await playground.waitForState("Connected");
  expect([await playground.sessionId(), await page.evaluate(() => document.activeElement!.id)]).toEqual([id, "call"]);
  await page.keyboard.press("Enter");
  await callState.filter({ hasText: "In a call" }).waitFor();
  await expect.poll(await highest(page, bot)).toBeGreaterThan(audible);
});

test("Call chooses a mode with voice; hanging up cancels a call that is not connected yet", async () => {
  await using playground = await setup.open();
  await playground.page.evaluate(() => {
    navigator.mediaDevices.getUserMedia = () => new Promise(() => {}); // the user does not answer the browser's question
  });
  await playground.click("Call");
  await playground.waitForState("Connected");
  expect(await playground.page.getByRole("radio", { name: "webrtc", includeHidden: true }).isChecked()).toBe(true);
  await playground.page.locator("#call-state").filter({ hasText: "Allow the microphone" }).waitFor();
  await playground.click("Hang up");
  await playground.page.locator("#call-state").filter({ hasText: "The call was cancelled." }).waitFor();
  expect(await playground.page.getByRole("alert").count()).toBe(0);
});

// The permission applies to a microphone, so the browser needs one.
test.each([
  ["denied", ["--use-fake-device-for-media-stream"], "denied", "site settings"],
  ["absent", [], "granted", "No microphone was found"],
] as const)("a microphone that is %s is explained, and the session goes on as chat", async (name, args, setting, text) => {
  const other = await chromium.launch(chromiumOptions(args));
  await using _ = { [Symbol.asyncDispose]: () => other.close() };
  await using playground = await Playground.open(other, setup.service);
  const { page } = playground;
  const cdp = await page.context().newCDPSession(page);
  const { targetInfo } = await cdp.send("Target.getTargetInfo");
  await cdp.send("Browser.setPermission", { permission: { name: "microphone" }, setting, browserContextId: targetInfo.browserContextId! });
  await playground.click("Call");
  await page.getByRole("alert").filter({ hasText: text }).filter({ hasText: "type below" }).waitFor();
  await playground.screenshot(`call-${name}`);
  await playground.click("hello");
  await playground.message("Hello! How are you?").waitFor();
  expect(await page.getByRole("button", { name: "Call", exact: true }).isEnabled()).toBe(true);
});

test("without espeak-ng, the page says that speech is a placeholder", async () => {
  await using silent = await startService({ PATH: "/nonexistent" });
  await using playground = await Playground.open(setup.browser, silent);
  await playground.page.getByText("apt-get install espeak-ng").waitFor();
  await playground.screenshot("speech-placeholder");
  await using speaking = await setup.open();
  expect(await speaking.page.getByText("apt-get install espeak-ng").isVisible()).toBe(false);
});
