/** The sample rate of the `audio` frames that the SDK sends, and of G.711. */
export const telephoneRate = 8_000;

/** G.711 A-law decoding table: samples between -1 and 1. */
const decoded = Float32Array.from({ length: 256 }, (_, byte) => {
  const bits = byte ^ 0x55;
  const exponent = (bits >> 4) & 7;
  const mantissa = ((bits & 15) << 4) + 8;
  const size = exponent ? (mantissa + 256) << (exponent - 1) : mantissa;
  return (bits & 0x80 ? size : -size) / 32_768;
});

/** Decodes G.711 A-law to samples between -1 and 1. */
export function decodeAlaw(bytes: Uint8Array): Float32Array<ArrayBuffer> {
  return Float32Array.from(bytes, (byte) => decoded[byte]!);
}

/** Encodes samples as G.711 A-law. Samples beyond -1 and 1 are clipped. */
export function encodeAlaw(samples: Float32Array): Uint8Array<ArrayBuffer> {
  return Uint8Array.from(samples, (sample) => {
    const value = Math.round(Math.min(Math.max(sample * 32_768, -32_768), 32_767));
    const size = value < 0 ? ~value : value;
    const exponent = Math.max(24 - Math.clz32(size), 0);
    const mantissa = (size >> (exponent ? exponent + 3 : 4)) & 15;
    return ((value < 0 ? 0 : 0x80) | (exponent << 4) | mantissa) ^ 0x55;
  });
}
