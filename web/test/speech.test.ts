import { expect, test } from "vitest";
import { decode } from "../src/speech.js";

const base64 = (...bytes: number[]) => Buffer.from(bytes).toString("base64");

test.each([
  ["A-law's smallest and largest steps", "alaw", [0xd5, 0x55, 0xaa, 0x2a], [8, -8, 32_256, -32_256]],
  ["PCM of 16 bits, little endian", "pcm", [0x00, 0x80, 0xff, 0x7f, 0x01, 0x00], [-32_768, 32_767, 1]],
  ["an unknown encoding", "opus", [1, 2, 3], []],
])("%s", (_, encoding, bytes, samples) => {
  expect([...decode({ encoding, data: base64(...bytes) })].map((sample) => sample * 32_768)).toEqual(samples);
});
