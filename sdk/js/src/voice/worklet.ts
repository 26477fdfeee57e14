// The part of the SDK that runs in the browser's audio thread. It is built as a file of its own.
import { JitterBuffer } from "./jitter.js";

declare const sampleRate: number;
declare function registerProcessor(name: string, processor: new () => AudioWorkletProcessor): void;
declare class AudioWorkletProcessor {
  readonly port: MessagePort;
}

/** Audio is posted in blocks of this length. */
const blockSeconds = 0.02;
/** Delay of playback, and the most that is queued. */
const [delaySeconds, limitSeconds] = [0.06, 30];

/** Posts its input in blocks. */
class Capture extends AudioWorkletProcessor {
  private block = new Float32Array(sampleRate * blockSeconds);
  private filled = 0;

  process([input]: Float32Array[][]): boolean {
    for (let rest = input?.[0] ?? new Float32Array(); rest.length; ) {
      const part = rest.subarray(0, this.block.length - this.filled);
      this.block.set(part, this.filled);
      this.filled += part.length;
      rest = rest.subarray(part.length);
      if (this.filled < this.block.length) break;
      this.port.postMessage(this.block);
      this.filled = 0;
    }
    return true;
  }
}

/** Plays the blocks that are posted to it. Anything else that is posted discards the audio that was not played yet. */
class Playback extends AudioWorkletProcessor {
  private readonly buffer = new JitterBuffer(sampleRate * delaySeconds, sampleRate * limitSeconds);

  constructor() {
    super();
    this.port.onmessage = ({ data }: MessageEvent<unknown>) => (data instanceof Float32Array ? this.buffer.push(data) : this.buffer.clear());
  }

  process(_: unknown, [output]: Float32Array[][]): boolean {
    this.buffer.pull(output![0]!);
    return true;
  }
}

registerProcessor("telapi-capture", Capture);
registerProcessor("telapi-playback", Playback);
