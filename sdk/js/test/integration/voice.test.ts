import type { Page } from "playwright-core";
import { expect, inject, test } from "vitest";
import type * as core from "../../src/index.js";
import type * as voice from "../../src/voice.js";
import { Service } from "./service.js";
import { launch, launchWithMicrophone, PageServer } from "./voice.js";

declare const telapi: typeof core;
declare const telapiVoice: typeof voice;

const service = Service.at(inject("service"));

const page = '<!doctype html><title>Call</title><script src="telapi.js"></script><script src="telapi-voice.js"></script>';
const strict = { "Content-Security-Policy": "default-src 'none'; script-src 'self'; connect-src *" };

/** Opens the page. The errors of the page are those of the test. */
async function open(browser: { newPage(): Promise<Page> }, url: string): Promise<Page> {
  const tab = await browser.newPage();
  tab.setDefaultTimeout(60_000);
  await tab.goto(url);
  return tab;
}

/** Calls in the page and returns the code and the message of the error. */
const failToCall = (tab: Page, token: core.TokenResponse, options: object = {}) =>
  tab.evaluate(async ([given, more]) => {
    const session = telapi.connect({ token: given });
    const error: unknown = await telapiVoice.callWebRtc(session, more).catch((error: unknown) => error);
    return error instanceof telapi.TelapiError ? `${error.code}: ${error.message}` : String(error);
  }, [token, options] as const);

test("a runtime that does not answer is reported", async () => {
  await using server = await PageServer.start({ page });
  await using browser = await launchWithMicrophone();
  const tab = await open(browser, server.url);
  expect(await failToCall(tab, await service.issue({ mode: "webrtc" }), { timeoutMs: 2_000 })).toMatch(/^CALL_TIMEOUT: The runtime did not answer/);
});

test("a page that was not loaded over HTTPS is explained", async () => {
  await using server = await PageServer.start({ page });
  await using browser = await launchWithMicrophone("--host-resolver-rules=MAP telapi.example 127.0.0.1");
  const tab = await open(browser, `http://telapi.example:${server.port}/page`);
  const token = await service.issue({ mode: "webrtc" });
  expect(await failToCall(tab, token)).toMatch(/^INSECURE_ORIGIN: .*https:/);
  expect(await tab.evaluate((given) => telapiVoice.playAudio(telapi.connect({ token: given })).then(String, String), token)).toMatch(/https:/);
});

test("a worklet that the Content-Security-Policy blocks is explained", async () => {
  await using server = await PageServer.start({ page }, strict);
  await using browser = await launch();
  const tab = await open(browser, server.url);
  const message = await tab.evaluate((token) => telapiVoice.playAudio(telapi.connect({ token })).then(String, String), await service.issue({ mode: "audio" }));
  expect(message).toMatch(/could not load the audio worklet .*Content-Security-Policy.*workletUrl/);
});
