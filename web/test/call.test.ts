import { chromium } from "playwright-core";
import { expect, test } from "vitest";
import { audible, highest, meters, Playground, Setup, startService } from "./browser.js";
import { chromiumOptions } from "./chromium.js";
import { checkRecording, splitLastPart } from "./recording.js";
import { Voice } from "./voice.js";

const setup = new Setup();

/** An answer that lasts for a minute, so that it can be interrupted on a busy machine. */
const story = "There was a king. He had three sons. ".repeat(20);

test.for(["webrtc", "audio"])("a call in mode %s: the bot hears the caller, repeats it, and can be interrupted; both are recorded", async (mode, { expect }) => {
  await using playground = await setup.open();
  const { page } = playground;
  const voice = await Voice.replaceMicrophone(page);
  await splitLastPart(page);
  const callState = page.locator("#call-state");
  await playground.chooseMode(mode);
  await playground.click("Call");
  await callState.filter({ hasText: "In a call" }).waitFor();
  await voice.speak();
  await playground.timelineEvent("caller speaks").first().waitFor();
  await expect.poll(async () => Number(await page.getByRole("meter", { name: meters.bot }).getAttribute("aria-valuenow"))).toBeLessThan(audible); // the greeting is interrupted
  const answer = await highest(page, meters.bot);
  await voice.silence();

  // The runtime has measured the same sound, and sends it back.
  const heard = playground.timelineEvent(/heard [\d.]+ s, level/);
  await heard.first().waitFor();
  expect(Number(/level \D?([\d.]+) dBFS/.exec((await heard.first().textContent())!)![1])).toBeLessThan(40); // below full scale
  await playground.message("I heard").first().waitFor();
  await playground.timelineEvent("repeats what it heard").first().waitFor();
  await expect.poll(answer).toBeGreaterThan(audible);
  await playground.screenshot(`call-${mode}`);

  // An answer is interrupted, as the greeting may have been.
  const before = await page.locator("#interruption").textContent();
  await playground.send(story);
  await playground.timelineEvent("plays: You said").waitFor();
  await voice.speak();
  await page.locator("#interruption").filter({ hasText: "You interrupted the bot", hasNotText: before || /$^/ }).waitFor();
  await playground.screenshot(`call-${mode}-interrupted`);
  await voice.silence();
  if (mode === "audio") await checkAppearances(playground);

  await playground.disturb("Cut connection");
  await playground.waitForState("Connection cut");
  await callState.filter({ hasText: mode === "audio" ? /^The line is interrupted/ : /^In a call/ }).waitFor();
  await playground.disturb("Resume");
  await playground.waitForState("Connected");
  await callState.filter({ hasText: /^In a call, \d+:\d\d$/ }).waitFor();

  await playground.click("5");
  await playground.message("Digits submitted: 5").waitFor();
  if (mode === "webrtc") await playground.timelineEvent("digit 5 (RTP)").waitFor();

  await voice.speak();
  await playground.click("Mute");
  await expect.poll(() => page.getByRole("meter", { name: meters.you }).getAttribute("aria-valuenow")).toBe("0");
  await playground.click("Hang up");
  await callState.filter({ hasText: "The call has ended." }).waitFor();
  expect(await page.evaluate(() => document.activeElement!.textContent)).toBe("Call");

  // Then the page shows how long the answers took.
  expect(await page.getByRole("tab", { selected: true }).textContent()).toBe("Turns");
  const spoken = page.getByRole("list", { name: "Spoken turns" }).getByRole("button");
  await spoken.filter({ hasText: /spoke for [\d.]+ s.*text [\d.]+ m?s, audio [\d.]+ m?s, playback/ }).first().waitFor();
  await page.locator("#voice-summary").filter({ hasText: /^\d+ answered, p50 [\d.]+ m?s, p95 [\d.]+ m?s$/ }).waitFor();
  await playground.checkAccessible(`call-${mode}-turns`);
  await checkRecording(playground, mode, expect);
  await playground.click("Call"); // again, in the same session
  await callState.filter({ hasText: "In a call" }).waitFor();
  await playground.click("Disconnect");
  await playground.waitForState("Ended");
  await callState.filter({ hasText: "The call has ended." }).waitFor();
});

/** Checks that the page is accessible during a call in dark colours and on a phone. */
async function checkAppearances(playground: Playground): Promise<void> {
  const { page } = playground;
  const wide = page.viewportSize()!;
  await page.emulateMedia({ colorScheme: "dark" });
  await playground.checkAccessible("call-dark");
  await page.emulateMedia({ colorScheme: null });
  await page.setViewportSize({ width: 390, height: 844 });
  await playground.showTab("Talk");
  await playground.checkAccessible("call-phone");
  await page.setViewportSize(wide);
  await playground.showTab("Timeline");
}

test("a call is the default, chat is one click away, and the microphone has a level before the call", async ({ expect }) => {
  await using playground = await setup.open();
  const { page } = playground;
  expect(await page.getByRole("radio", { name: "webrtc", includeHidden: true }).isChecked()).toBe(true);
  expect(await page.getByText("apt-get install espeak-ng").isVisible()).toBe(false); // speech is not a placeholder
  await page.getByText("Microphone and speaker").click();
  const level = await highest(page, meters.you);
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
  expect(await page.getByRole("meter", { name: meters.you, includeHidden: true }).getAttribute("aria-valuenow")).toBe("0");
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

test("a microphone whose sound cannot be processed is closed", async ({ expect }) => {
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
  for (const [index, button] of ["Test microphone", "Call"].entries()) {
    await page.locator("#call-error").evaluate((notice) => notice.replaceChildren());
    await playground.click(button);
    await expect.poll(() => page.evaluate("states()")).toEqual(Array(index + 1).fill("ended"));
    await page.locator("#call-error").getByText("too many contexts").waitFor();
    await page.getByRole("button", { name: "Test microphone", pressed: false }).waitFor();
  }
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
  await expect.poll(await highest(page, meters.bot)).toBeGreaterThan(audible);
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
});
