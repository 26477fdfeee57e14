import type { Payload } from "@telapi/sdk";

/** Decodes an audio message to samples between -1 and 1. Returns none for an unknown encoding. */
export function decode({ encoding, data }: Payload): Float32Array<ArrayBuffer> {
  const bytes = Uint8Array.from(atob(String(data ?? "")), (character) => character.charCodeAt(0));
  if (encoding === "alaw") return Float32Array.from(bytes, (byte) => alaw[byte]!);
  if (encoding !== "pcm") return new Float32Array();
  const view = new DataView(bytes.buffer);
  return Float32Array.from({ length: bytes.length >> 1 }, (_, index) => view.getInt16(2 * index, true) / 32_768);
}

/** G.711 A-law decoding table. */
const alaw = Float32Array.from({ length: 256 }, (_, byte) => {
  const bits = byte ^ 0x55;
  const exponent = (bits >> 4) & 7;
  const mantissa = ((bits & 15) << 4) + 8;
  const size = exponent ? (mantissa + 256) << (exponent - 1) : mantissa;
  return (bits & 0x80 ? size : -size) / 32_768;
});

/** Playback delay that absorbs jitter. */
const jitterBufferSeconds = 0.08;

/** Plays frames one after the other. Browsers allow sound only after a click on the page. */
export class Player {
  private readonly context = new AudioContext();
  private readonly volume = new GainNode(this.context);
  private readonly playing = new Set<AudioBufferSourceNode>();
  private queuedUntil = 0; // end of the queued audio, on the clock of the context

  constructor(muted: boolean) {
    this.volume.connect(this.context.destination);
    this.mute(muted);
  }

  mute(muted: boolean): void {
    this.volume.gain.value = muted ? 0 : 1;
  }

  play(samples: Float32Array<ArrayBuffer>, sampleRate: number): void {
    const buffer = this.context.createBuffer(1, samples.length, sampleRate);
    buffer.copyToChannel(samples, 0);
    const source = new AudioBufferSourceNode(this.context, { buffer });
    source.connect(this.volume);
    source.onended = () => this.playing.delete(source);
    this.playing.add(source);
    const { currentTime } = this.context;
    if (this.queuedUntil < currentTime) this.queuedUntil = currentTime + jitterBufferSeconds;
    source.start(this.queuedUntil);
    this.queuedUntil += buffer.duration;
  }

  /** Discards audio that was not played yet. */
  stop(): void {
    for (const source of this.playing) source.stop();
    this.queuedUntil = 0;
  }

  close(): void {
    void this.context.close();
  }
}
