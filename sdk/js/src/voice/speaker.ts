import type { Payload, Session } from "../index.js";
import { decodeAlaw, telephoneRate } from "./alaw.js";
import { Meter, openContext, type WorkletOptions } from "./context.js";
import { Resampler } from "./resampler.js";

/** Plays `audio` frames. */
export class Speaker {
  private readonly gain: GainNode;
  private readonly meter: Meter;
  private readonly playback: AudioWorkletNode;
  private open = true;
  private rate = 0; // of the last frame
  private resampler: Resampler | undefined;

  /** @internal */
  constructor(private readonly context: AudioContext) {
    this.playback = new AudioWorkletNode(context, "telapi-playback", { numberOfInputs: 0, outputChannelCount: [1] });
    this.gain = new GainNode(context);
    this.playback.connect(this.gain).connect(context.destination);
    this.meter = new Meter(this.playback);
  }

  /** The level before the volume is applied: 0 for silence, 1 at most. */
  get level(): number {
    return this.meter.level;
  }

  /** The volume, from 0 to 1. */
  get volume(): number {
    return this.gain.gain.value;
  }

  set volume(volume: number) {
    this.gain.gain.value = volume;
  }

  /** Plays on the output device with this ID; an empty one is the default. Rejects if the browser cannot choose it. */
  async setDevice(deviceId: string): Promise<void> {
    if (deviceId || "setSinkId" in this.context) await (this.context as AudioContext & { setSinkId(id: string): Promise<void> }).setSinkId(deviceId);
  }

  /** Plays the audio of a frame after the audio that is queued. Ignores unknown encodings. */
  play(frame: Payload): void {
    const samples = decodeAudio(frame);
    const rate = Number(frame.sampleRate) || telephoneRate;
    if (rate !== this.rate) this.resampler = new Resampler(rate, this.context.sampleRate);
    this.rate = rate;
    this.playback.port.postMessage(this.resampler!.process(samples));
  }

  /** Discards the audio that was not played yet. */
  flush(): void {
    this.rate = 0; // the next frame starts afresh
    this.playback.port.postMessage("flush");
  }

  /** Stops playback. */
  stop(): void {
    if (this.open) void this.context.close();
    this.open = false;
  }

  [Symbol.dispose](): void {
    this.stop();
  }
}

/**
 * Plays the session's `audio` frames. Call it right after `connect`, in a click handler: browsers allow no sound before that.
 * A `control` message with the command `stop_playback` discards the audio that was not played yet.
 */
export async function playAudio(session: Session, options: WorkletOptions = {}): Promise<Speaker> {
  let early: Payload[] = []; // frames that arrive before the speaker is ready
  let speaker: Speaker | undefined;
  session.on("audio", (frame) => (speaker ? speaker.play(frame) : early.push(frame)));
  session.on("control", ({ command }) => {
    if (command !== "stop_playback") return;
    early = [];
    speaker?.flush();
  });
  const context = await openContext(options);
  speaker = new Speaker(context);
  for (const frame of early) speaker.play(frame);
  if (session.state === "ended") speaker.stop();
  session.on("state", ({ state }) => state === "ended" && speaker.stop());
  return speaker;
}

/** Decodes the audio of a frame (`encoding` `alaw` or `pcm`: 16 bits, little endian) to samples between -1 and 1. Returns none for other encodings. */
export function decodeAudio({ encoding, data }: Payload): Float32Array<ArrayBuffer> {
  const bytes = Uint8Array.from(atob(String(data ?? "")), (character) => character.charCodeAt(0));
  if (encoding === "alaw") return decodeAlaw(bytes);
  if (encoding !== "pcm") return new Float32Array();
  const view = new DataView(bytes.buffer);
  return Float32Array.from({ length: bytes.length >> 1 }, (_, index) => view.getInt16(2 * index, true) / 32_768);
}
