import { mkdtempSync, readFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Page } from "playwright-core";
import type { ExpectStatic } from "vitest";
import { parseTrace } from "../src/export.js";
import type { Playground } from "./browser.js";

/** Makes the last data of a recording come in two parts, as it does if the call ends when a part is due. */
export function splitLastPart(page: Page): Promise<void> {
  return page.evaluate(() => {
    const { stop } = MediaRecorder.prototype;
    MediaRecorder.prototype.stop = function () {
      this.requestData();
      stop.call(this);
    };
  });
}

/** Checks that both sides of the call that has just ended are recorded, and can be played, exported and deleted. */
export async function checkRecording(playground: Playground, mode: string, expect: ExpectStatic): Promise<void> {
  const { page } = playground;
  const recording = page.getByRole("list", { name: "Earlier sessions" }).locator("audio");
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
  expect([sound.sessionId, sound.channels]).toEqual([await playground.sessionId(), 2]);
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
}
