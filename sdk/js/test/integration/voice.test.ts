import type { Page } from "playwright-core";
import { expect, inject, test } from "vitest";
import type * as core from "../../src/index.js";
import type * as voice from "../../src/voice.js";
import { Service } from "./service.js";
import { launch, launchWithMicrophone, PageServer } from "./voice.js";

declare const telapi: typeof core;
declare const telapiVoice: typeof voice;
declare const window: Record<string, unknown>;

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

/** The loudest value of an expression in the page, which is read many times. */
const loudest = (tab: Page, expression: string) =>
  expect.poll(() => tab.evaluate<number>(`window.loudest = Math.max(window.loudest ?? 0, ${expression})`), { timeout: 60_000, interval: 20 });

/** Waits until an expression is true in the page. */
const until = (tab: Page, expression: string, timeout = 60_000) => expect.poll(() => tab.evaluate<boolean>(expression), { timeout }).toBe(true);

test("the microphone goes out as frames of A-law and comes back, under a strict Content-Security-Policy", async () => {
  await using server = await PageServer.start({ page }, strict);
  await using browser = await launchWithMicrophone();
  const tab = await open(browser, server.url);
  await tab.evaluate(async (token) => {
    const session = telapi.connect({ token });
    const frames: Record<string, unknown>[] = [];
    session.on("frame", ({ direction, message }) => direction === "to_ari" && message.type === "audio" && frames.push(message.audio!));
    const speaker = await telapiVoice.playAudio(session, { workletUrl: "voice-worklet.js" });
    await session.whenReady();
    const microphone = await telapiVoice.sendMicrophone(session, { workletUrl: "voice-worklet.js" });
    Object.assign(window, { session, frames, speaker, microphone });
  }, await service.issue({ mode: "audio" }));

  await loudest(tab, "microphone.level").toBeGreaterThan(0.05);
  await tab.evaluate("loudest = 0");
  await loudest(tab, "speaker.level").toBeGreaterThan(0.05);
  const sent = await tab.evaluate<{ encoding: string; sampleRate: number; sequence: number; data: string }[]>("frames.slice(0, 50)");
  expect(sent.map(({ sequence }) => sequence)).toEqual(sent.map((_, index) => index));
  expect(new Set(sent.map(({ encoding, sampleRate, data }) => `${encoding} ${sampleRate} ${atob(data).length}`))).toEqual(new Set(["alaw 8000 160"]));

  const silent = "frames.slice(-25).every(({ data }) => /^[\\xd5\\x55]*$/.test(atob(data)))";
  await tab.evaluate("microphone.muted = true");
  await until(tab, `(frames.splice(0, frames.length - 80), ${silent})`);
  await tab.evaluate("microphone.muted = false");
  await until(tab, `!(${silent})`);

  // The session's connection is cut and resumed: the microphone goes on.
  await tab.evaluate("session.cut(); frames.length = 0; session.resume()");
  await until(tab, "frames.length > 10");
  await tab.evaluate("microphone.stop(); microphone.stop(); speaker.stop()");
  expect(await tab.evaluate("microphone.stream.getTracks().map(({ readyState }) => readyState)")).toEqual(["ended"]);
});

test("stop_playback discards audio that was not played", async () => {
  await using server = await PageServer.start({ page });
  await using browser = await launch();
  const tab = await open(browser, server.url);
  const tone = Buffer.from(Uint8Array.from({ length: 8_000 }, (_, index) => (index % 8 < 4 ? 0xaa : 0x2a))).toString("base64");
  await tab.evaluate(async ([token, data]) => {
    const session = telapi.connect({ token });
    const speaker = await telapiVoice.playAudio(session);
    await session.whenReady();
    for (let second = 0; second < 20; second++) session.sendAudio({ encoding: "alaw", sampleRate: 8_000, data });
    Object.assign(window, { session, speaker });
  }, [await service.issue({ mode: "audio" }), tone] as const);
  await until(tab, "speaker.level > 0.3");
  await tab.evaluate('session.send("control", { command: "stop_playback" })');
  await until(tab, "speaker.level === 0", 15_000); // the queue has 20 s
});

/** Answers the page's offers with a second connection, which sends back what it receives. The service carries the signalling. */
async function answerCalls(tab: Page, sessionId: string): Promise<void> {
  await tab.exposeFunction("sendToPage", (payload: object) => service.telapi("channel", "send", sessionId, "--type", "control", "--payload", JSON.stringify(payload)));
  await tab.evaluate(() => {
    const { session, sendToPage } = window as unknown as { session: core.Session; sendToPage(payload: object): Promise<void> };
    let runtime: RTCPeerConnection;
    let queue = Promise.resolve();
    const handle = async ({ command, callId, sdp, candidate }: core.Payload) => {
      if (command === "webrtc_offer") {
        runtime = new RTCPeerConnection();
        Object.assign(window, { runtime, offer: sdp });
        runtime.ontrack = ({ track, transceiver }) => {
          transceiver.direction = "sendrecv";
          void transceiver.sender.replaceTrack(track);
        };
        await runtime.setRemoteDescription({ type: "offer", sdp: String(sdp) });
        await runtime.setLocalDescription();
        await new Promise<void>((done) => (runtime.onicecandidate = ({ candidate }) => candidate ?? done()));
        await sendToPage({ command: "webrtc_answer", callId: "of-an-earlier-call", sdp: "invalid" });
        await sendToPage({ command: "webrtc_answer", callId, sdp: runtime.localDescription!.sdp });
      }
      if (command === "webrtc_candidate" && candidate) await runtime.addIceCandidate(candidate);
      if (command === "webrtc_end") runtime.close();
    };
    session.on("frame", ({ direction, message }) => {
      if (direction === "to_ari" && message.control) queue = queue.then(() => handle(message.control!));
    });
  });
}

test("a WebRTC call uses A-law, survives a cut of the session, and ends cleanly", async () => {
  await using server = await PageServer.start({ page }, strict);
  await using browser = await launchWithMicrophone("--disable-features=WebRtcHideLocalIpsWithMdns");
  const tab = await open(browser, server.url);
  const token = await service.issue({ mode: "webrtc" });
  await tab.evaluate((given) => Object.assign(window, { session: telapi.connect({ token: given }) }), token);
  await answerCalls(tab, token.sessionId);
  await tab.evaluate(async () => {
    const call = await telapiVoice.callWebRtc(window.session as core.Session, { timeoutMs: 120_000 });
    Object.assign(window, { call });
    void call.ended.then((reason) => Object.assign(window, { reason: reason?.message ?? "ended" }));
  });
  expect(await tab.evaluate<string>("offer")).toMatch(/m=audio \d+ \S+ 8 /); // 8 is A-law
  const codecs = "call.connection.getStats().then((stats) => [...stats.values()].filter(({ type }) => type === 'codec').map(({ mimeType }) => mimeType))";
  await expect.poll(() => tab.evaluate<string[]>(codecs), { timeout: 60_000 }).toContain("audio/PCMA");
  await loudest(tab, "call.microphoneLevel").toBeGreaterThan(0.05);
  await tab.evaluate("loudest = 0");
  await loudest(tab, "call.speakerLevel").toBeGreaterThan(0.05);

  await tab.evaluate("session.cut(); loudest = 0");
  await loudest(tab, "call.speakerLevel").toBeGreaterThan(0.05);
  await tab.evaluate("session.resume()");
  expect(await tab.evaluate('call.sendDigits("12#")')).toBe(true);
  await until(tab, "call.connection.getSenders()[0].dtmf.toneBuffer === ''");

  await tab.evaluate("call.end(); call.end()");
  await until(tab, "window.reason === 'ended' && runtime.connectionState === 'closed'");
  expect(await tab.evaluate("[call.connection.connectionState, ...call.stream.getTracks().map(({ readyState }) => readyState)]")).toEqual(["closed", "ended"]);
});

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

// The permission applies to a microphone, so the browser needs one.
test.each([
  ["denied", ["--use-fake-device-for-media-stream"], /^MICROPHONE_DENIED: .*site settings/],
  ["granted", [], /^MICROPHONE_NOT_FOUND: No microphone was found/],
] as const)("a microphone that is %s in a browser with %j is explained", async (setting, args, expected) => {
  await using server = await PageServer.start({ page });
  await using browser = await launch(...args);
  const tab = await open(browser, server.url);
  const cdp = await tab.context().newCDPSession(tab);
  const { targetInfo } = await cdp.send("Target.getTargetInfo");
  await cdp.send("Browser.setPermission", { permission: { name: "microphone" }, setting, browserContextId: targetInfo.browserContextId! });
  expect(await failToCall(tab, await service.issue({ mode: "webrtc" }))).toMatch(expected);
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
