/**
 * Evens out the arrival of audio. Playback starts when `delay` samples are queued, or when as many have passed since the first
 * one arrived. It starts the same way after the queue ran empty.
 */
export class JitterBuffer {
  private readonly queue: Float32Array[] = [];
  private offset = 0; // in the first block of the queue
  private queued = 0; // samples
  private waited = 0; // samples of silence since the first block arrived
  private playing = false;

  /** The oldest audio is dropped if more than `limit` samples are queued. */
  constructor(
    private readonly delay: number,
    private readonly limit: number,
  ) {}

  push(samples: Float32Array): void {
    this.queue.push(samples);
    this.queued += samples.length;
    if (this.queued > this.limit) this.take(new Float32Array(this.queued - this.limit));
  }

  /** Fills the output with the next samples, or with silence. */
  pull(output: Float32Array): void {
    output.fill(0);
    this.playing ||= this.queued > 0 && (this.queued >= this.delay || this.waited >= this.delay);
    if (!this.playing) {
      if (this.queued) this.waited += output.length;
      return;
    }
    this.take(output);
    if (!this.queued) this.clear();
  }

  /** Discards the queue. */
  clear(): void {
    this.queue.length = this.offset = this.queued = this.waited = 0;
    this.playing = false;
  }

  private take(output: Float32Array): void {
    for (let filled = 0; filled < output.length && this.queue.length; ) {
      const block = this.queue[0]!;
      const part = block.subarray(this.offset, this.offset + output.length - filled);
      output.set(part, filled);
      filled += part.length;
      this.offset += part.length;
      this.queued -= part.length;
      if (this.offset < block.length) continue;
      this.queue.shift();
      this.offset = 0;
    }
  }
}
