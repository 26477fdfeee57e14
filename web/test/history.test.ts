import { mkdtempSync, readFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "vitest";
import { parseTrace } from "../src/export.js";
import { Setup } from "./browser.js";

const setup = new Setup();

test("earlier sessions stay in a list, and a link opens one event", async ({ expect }) => {
  await using playground = await setup.start();
  const { page } = playground;
  const id = await playground.sessionId();
  await playground.send("remember this");
  await playground.message('You said "remember this"').waitFor();
  await playground.timelineEvent("answer from bot").click();
  await playground.click("Copy link");
  await page.getByRole("button", { name: "Copied" }).waitFor();
  const link = await playground.copied();
  await playground.click("Disconnect");
  await playground.waitForState("Ended");
  await playground.showTab("History");
  const list = page.getByRole("list", { name: "Earlier sessions" });
  await list.getByText(id).waitFor();
  await playground.click("Chat"); // another one
  await playground.message("Hello, this is the demo bot").waitFor();

  await page.reload();
  await playground.showTab("History");
  await expect.poll(() => list.getByRole("listitem").count()).toBe(2); // the list stays the same from now on
  await page.getByRole("searchbox", { name: "Text" }).fill("remember this");
  await list.getByText("remember this").waitFor();
  await expect.poll(() => list.getByRole("listitem").count()).toBe(1);
  await playground.checkAccessible("history");
  const [file] = await Promise.all([page.waitForEvent("download"), list.getByRole("button", { name: /^Export/ }).click()]);
  const path = join(mkdtempSync(join(tmpdir(), "telapi-history-")), "trace.json");
  await file.saveAs(path);
  const trace = parseTrace(readFileSync(path, "utf8"));
  expect(trace.sessionId).toBe(id);
  await list.getByRole("button", { name: /^Open/ }).click();
  await page.getByText(`Trace of session ${id}`).waitFor();
  await playground.timelineEvent("chat: remember this").first().waitFor();

  await page.goto(`${setup.service.url}/docs/`); // so that the link loads the page
  await page.goto(link);
  await page.getByRole("region", { name: "answer from bot" }).waitFor();
  await playground.showTab("History");
  await expect.poll(() => list.getByRole("listitem").count()).toBe(2);
  await page.getByRole("searchbox", { name: "Text" }).fill("remember this");
  await list.getByRole("button", { name: /^Delete/ }).click();
  await expect.poll(() => list.getByRole("listitem").count()).toBe(0);
});

test("a reload keeps the rows of the page", async ({ expect }) => {
  await using playground = await setup.start();
  await playground.send("hello");
  await playground.message("Hello! How are you?").waitFor();
  await playground.message("hello").filter({ hasText: "acknowledged" }).waitFor(); // or it is sent again
  await playground.timelineEvent("POST /api/v1/sessions/token").waitFor();
  await playground.page.reload();
  await playground.timelineEvent("POST /api/v1/sessions/token").waitFor();
  await playground.timelineEvent("browser to service: framechat: hello").waitFor();
  expect(await playground.timelineEvent("browser to service: framechat: hello").count()).toBe(1);
});

test.for(["webrtc", "audio"])("both sides of a call in mode %s are recorded, played, exported and deleted", async (mode, { expect }) => {
  await using playground = await setup.open();
  const { page } = playground;
  const recording = page.getByRole("list", { name: "Earlier sessions" }).locator("audio");
  await playground.chooseMode(mode);
  await playground.click("Call");
  await playground.timelineEvent("repeats what it heard").first().waitFor();
  await playground.timelineEvent(/^.*speechplay(ed|back stopped)/).nth(1).waitFor(); // the greeting, and what it heard
  const id = await playground.sessionId();
  await playground.click("Hang up");
  await playground.showTab("History");
  await page.getByRole("button", { name: /^Play the recording: Call at/ }).waitFor();

  const stored = () => page.evaluate(async () => {
    const result = <Value>(request: IDBRequest<Value>) => new Promise<Value>((done, fail) => ((request.onsuccess = () => done(request.result)), (request.onerror = fail)));
    const database = await result(indexedDB.open("telapi-playground-history"));
    const [saved] = (await result(database.transaction("recordings").objectStore("recordings").getAll())) as { sessionId: string; blob: Blob }[];
    database.close();
    if (!saved) return undefined;
    const sound = await new OfflineAudioContext(2, 8_000, 8_000).decodeAudioData(await saved.blob.arrayBuffer());
    const loudest = [0, 1].map((channel) => sound.getChannelData(channel % sound.numberOfChannels).reduce((most, sample) => Math.max(most, Math.abs(sample)), 0));
    return { sessionId: saved.sessionId, seconds: sound.duration, channels: sound.numberOfChannels, caller: loudest[0]!, bot: loudest[1]! };
  });
  const sound = (await stored())!;
  expect([sound.sessionId, sound.channels]).toEqual([id, 2]);
  expect(Math.min(sound.caller, sound.bot)).toBeGreaterThan(0.05);

  await page.getByRole("button", { name: /^Play the recording/ }).click();
  await expect.poll(() => recording.evaluate(({ duration }: HTMLAudioElement) => duration)).toBeLessThan(1e6);
  await expect.poll(() => recording.evaluate(({ currentTime }: HTMLAudioElement) => currentTime)).toBeGreaterThan(0);
  await recording.evaluate((audio: HTMLAudioElement) => audio.pause());
  await playground.checkAccessible(`history-recording-${mode}`);
  const [file] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: /^Export the session/ }).click()]);
  const path = join(mkdtempSync(join(tmpdir(), "telapi-history-")), "trace.json");
  await file.saveAs(path);
  expect(parseTrace(readFileSync(path, "utf8")).recordings!.map(({ type }) => type)).toEqual(["audio/webm"]);
  await page.locator("#trace-file").setInputFiles(path);
  await playground.showTab("Timeline");
  await page.locator("#trace").getByRole("button", { name: /^Play the recording/ }).click();
  await page.locator("#trace audio").waitFor();
  await playground.checkAccessible(`trace-recording-${mode}`);

  await playground.showTab("History");
  await page.getByRole("button", { name: /^Delete the recording/ }).click();
  await recording.waitFor({ state: "detached" });
  await page.getByRole("button", { name: /^Play the recording/ }).waitFor({ state: "detached" });
  await expect.poll(stored).toBeUndefined();
});
