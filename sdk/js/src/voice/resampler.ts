/** Length of the filter on each side, in periods of its cut-off frequency. Longer filters are steeper. */
const periods = 16;
/** Cut-off frequency as a share of the lower sample rate: 3.6 kHz for 8 kHz. */
const cutoff = 0.45;

/** Changes the sample rate of a stream. A low-pass filter (windowed sinc) removes what the lower rate cannot carry. */
export class Resampler {
  private readonly step: number; // input samples per output sample, in units of 1 / phases
  private readonly phases: number; // output positions between two input samples
  private readonly half: number; // length of the filter on each side, in input samples
  private readonly filters: Float32Array[]; // one per phase
  private buffer: Float32Array; // input that is still needed
  private phase = 0; // position of the next output sample after buffer[half - 1]

  constructor(from: number, to: number) {
    const divisor = greatestCommonDivisor(from, to);
    this.step = from / divisor;
    this.phases = to / divisor;
    const frequency = (cutoff * Math.min(from, to)) / from; // in periods per input sample
    this.half = Math.ceil(periods / frequency);
    this.filters = Array.from({ length: this.phases }, (_, phase) => lowPass(frequency, this.half, phase / this.phases));
    this.buffer = new Float32Array(this.half - 1);
  }

  /** Returns the output that the input completes. */
  process(input: Float32Array): Float32Array<ArrayBuffer> {
    const { half, step, phases } = this;
    const samples = new Float32Array(this.buffer.length + input.length);
    samples.set(this.buffer);
    samples.set(input, this.buffer.length);
    const output: number[] = [];
    let start = 0; // of the filter
    while (start + 2 * half <= samples.length) {
      const filter = this.filters[this.phase]!;
      let sum = 0;
      for (let tap = 0; tap < filter.length; tap++) sum += filter[tap]! * samples[start + tap]!;
      output.push(sum);
      this.phase += step;
      start += Math.floor(this.phase / phases);
      this.phase %= phases;
    }
    this.buffer = samples.slice(start);
    return Float32Array.from(output);
  }
}

/** Returns a low-pass filter that is centred `offset` samples after its middle, with a Blackman window. */
function lowPass(frequency: number, half: number, offset: number): Float32Array {
  const filter = Float32Array.from({ length: 2 * half }, (_, tap) => {
    const at = tap - half + 1 - offset;
    const angle = (Math.PI * at) / half;
    const window = Math.abs(at) < half ? 0.42 + 0.5 * Math.cos(angle) + 0.08 * Math.cos(2 * angle) : 0;
    const x = 2 * Math.PI * frequency * at;
    return window * (x ? Math.sin(x) / x : 1);
  });
  const gain = filter.reduce((sum, value) => sum + value, 0);
  return filter.map((value) => value / gain);
}

function greatestCommonDivisor(a: number, b: number): number {
  return b ? greatestCommonDivisor(b, a % b) : a;
}
