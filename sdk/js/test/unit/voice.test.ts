import { expect, test, vi } from "vitest";
import { decodeAlaw, encodeAlaw } from "../../src/voice/alaw.js";
import { openContext } from "../../src/voice/context.js";
import { JitterBuffer } from "../../src/voice/jitter.js";
import { Resampler } from "../../src/voice/resampler.js";
import { decodeAudio } from "../../src/voice/speaker.js";

const sine = (hertz: number, rate: number, seconds = 0.2, amplitude = 0.5) =>
  Float32Array.from({ length: rate * seconds }, (_, index) => amplitude * Math.sin((2 * Math.PI * hertz * index) / rate));
const power = (samples: Float32Array) => samples.reduce((sum, sample) => sum + sample * sample, 0) / samples.length;
/** Whether two signals are the same, which is much faster than toEqual. */
const same = (a: Float32Array, b: Float32Array) => a.length === b.length && a.every((sample, index) => sample === b[index]);
const decibels = (ratio: number) => 10 * Math.log10(ratio);

test("A-law: every code survives decoding and encoding", () => {
  const codes = Uint8Array.from({ length: 256 }, (_, code) => code);
  expect(encodeAlaw(decodeAlaw(codes))).toEqual(codes);
});

test("A-law: known values, silence and clipping", () => {
  const encode = (...samples: number[]) => [...encodeAlaw(Float32Array.from(samples))];
  expect(encode(0, -1 / 32_768, 1, -1, 7, -7)).toEqual([0xd5, 0x55, 0xaa, 0x2a, 0xaa, 0x2a]);
  expect([...decodeAlaw(Uint8Array.of(0xd5, 0x55, 0xaa, 0x2a))].map((sample) => sample * 32_768)).toEqual([8, -8, 32_256, -32_256]);
});

test.each([0.9, 0.1, 0.01])("A-law: the noise of a tone with amplitude %f is 30 dB below it", (amplitude) => {
  const tone = sine(440, 8_000, 0.5, amplitude);
  const noise = decodeAlaw(encodeAlaw(tone)).map((sample, index) => sample - tone[index]!);
  expect(decibels(power(tone) / power(noise))).toBeGreaterThan(30);
});

/** Resamples in blocks of 128 samples, as the browser delivers them, and drops the start and the end of the filter. */
function resample(input: Float32Array, from: number, to: number): Float32Array {
  const resampler = new Resampler(from, to);
  const output: number[] = [];
  for (let start = 0; start < input.length; start += 128) output.push(...resampler.process(input.subarray(start, start + 128)));
  expect(output.length).toBeGreaterThan((input.length / from - 0.01) * to);
  expect(output.length).toBeLessThanOrEqual(Math.ceil((input.length * to) / from));
  return Float32Array.from(output.slice(to / 50, -to / 50));
}

test.each([44_100, 48_000, 96_000, 16_000])("resampling from %i Hz keeps speech and removes what 8 kHz cannot carry", (rate) => {
  for (const hertz of [100, 1_000, 3_000]) {
    expect(decibels(power(resample(sine(hertz, rate), rate, 8_000)) / power(sine(hertz, rate)))).toBeCloseTo(0, 0);
  }
  for (const hertz of [4_300, 5_000, 7_500]) {
    expect(decibels(power(resample(sine(hertz, rate), rate, 8_000)) / power(sine(hertz, rate)))).toBeLessThan(-60);
  }
});

test.each([44_100, 48_000, 8_000])("resampling from 8 kHz to %i Hz returns the same tone", (rate) => {
  const output = resample(sine(440, 8_000), 8_000, rate);
  const start = rate / 50; // the samples that resample drops
  const error = output.map((sample, index) => sample - 0.5 * Math.sin((2 * Math.PI * 440 * (index + start)) / rate));
  expect(decibels(power(error) / power(output))).toBeLessThan(-50);
});

/** Plays frames of 20 ms that arrive at the given times, in milliseconds, and returns what is heard at 8 kHz. */
function play(frames: Float32Array[], arrivals: number[], milliseconds: number): Float32Array {
  const buffer = new JitterBuffer(480, 240_000);
  const heard = new Float32Array(8 * milliseconds);
  for (let at = 0, next = 0; at < milliseconds; at += 4) {
    for (; next < frames.length && arrivals[next]! <= at; next++) buffer.push(frames[next]!);
    buffer.pull(heard.subarray(8 * at, 8 * at + 32));
  }
  return heard;
}

const frames = (samples: Float32Array) => Array.from({ length: samples.length / 160 }, (_, index) => samples.slice(160 * index, 160 * index + 160));
const trimmed = (samples: Float32Array) => samples.slice(samples.findIndex(Boolean) - 1, samples.length - [...samples].reverse().findIndex(Boolean));
const tone = sine(440, 8_000, 1);

test("jitter below the delay is not heard", () => {
  const arrivals = Array.from({ length: 50 }, (_, index) => 20 * index + ((index * 7) % 5) * 8); // up to 32 ms late
  const heard = play(frames(tone), arrivals, 1_200);
  expect(same(trimmed(heard), trimmed(tone))).toBe(true);
  expect(heard.findIndex(Boolean)).toBeLessThanOrEqual(8 * 80);
});

test("audio that is shorter than the delay is played", () => {
  const short = sine(440, 8_000, 0.02);
  expect(same(trimmed(play([short], [0], 200)), trimmed(short))).toBe(true);
});

test("a stall is a gap of silence, and nothing is lost", () => {
  const heard = play(frames(tone), Array.from({ length: 50 }, (_, index) => 20 * index + (index < 25 ? 0 : 400)), 1_600);
  const silence = heard.slice(8 * 600, 8 * 800);
  expect(power(silence)).toBe(0);
  expect(power(heard) * heard.length).toBeCloseTo(power(tone) * tone.length, 3);
});

test("an interruption discards the queue; the next audio is played", () => {
  const buffer = new JitterBuffer(480, 240_000);
  const output = new Float32Array(160);
  buffer.push(tone);
  buffer.pull(output);
  expect(power(output)).toBeGreaterThan(0);
  buffer.clear();
  buffer.pull(output);
  expect(power(output)).toBe(0);
  buffer.push(tone);
  buffer.pull(output);
  expect(same(output, tone.slice(0, 160))).toBe(true);
});

test("the oldest audio is dropped beyond the limit", () => {
  const buffer = new JitterBuffer(480, 4_000);
  const output = new Float32Array(4_000);
  for (const frame of frames(tone)) buffer.push(frame);
  buffer.pull(output);
  expect(same(output, tone.slice(4_000))).toBe(true);
});

const base64 = (...bytes: number[]) => Buffer.from(bytes).toString("base64");

test.each([
  ["A-law", "alaw", [0xd5, 0x55, 0xaa, 0x2a], [8, -8, 32_256, -32_256]],
  ["PCM of 16 bits, little endian", "pcm", [0x00, 0x80, 0xff, 0x7f, 0x01, 0x00], [-32_768, 32_767, 1]],
  ["an unknown encoding", "opus", [1, 2, 3], []],
])("frames: %s", (_, encoding, bytes, samples) => {
  expect([...decodeAudio({ encoding, data: base64(...bytes) })].map((sample) => sample * 32_768)).toEqual(samples);
});

test("an audio context that is closed before it could start causes no unhandled rejection", async () => {
  class ClosedContext {
    audioWorklet = { addModule: () => Promise.resolve() };
    resume = () => Promise.reject(new DOMException("closed before a pending resume() could complete", "InvalidStateError"));
  }
  vi.stubGlobal("AudioContext", ClosedContext);
  const unhandled = vi.fn();
  process.once("unhandledRejection", unhandled);
  await openContext({ workletUrl: "voice-worklet.js" });
  await new Promise(setImmediate); // Node reports rejections after the microtasks
  process.off("unhandledRejection", unhandled);
  vi.unstubAllGlobals();
  expect(unhandled).not.toHaveBeenCalled();
});
