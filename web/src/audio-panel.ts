import type { Payload } from "@telapi/sdk";
import { byId } from "./dom.js";
import { decode, Player } from "./speech.js";

const bars = 160;

/** The audio panel: plays audio and shows the level of the last frames. */
export class AudioPanel {
  private readonly canvas = byId<HTMLCanvasElement>("wave");
  private readonly mute = byId<HTMLButtonElement>("mute");
  private player: Player | undefined;
  private peaks: number[] = [];
  private frames = 0;
  private seconds = 0;
  private drawing = 0;

  constructor() {
    this.mute.onclick = () => {
      this.muted = !this.muted;
    };
    for (const [on, event] of [[matchMedia("(prefers-color-scheme: dark)"), "change"], [window, "resize"], [window, "themechange"]] as const) {
      on.addEventListener(event, () => this.draw());
    }
    this.draw();
  }

  private get muted(): boolean {
    return this.mute.ariaPressed === "true";
  }

  private set muted(muted: boolean) {
    this.mute.ariaPressed = String(muted);
    this.player?.mute(muted);
  }

  /** Must be called in a click handler: browsers block audio before that. */
  begin(): void {
    this.end();
    this.player = new Player(this.muted);
    this.peaks = [];
    this.frames = this.seconds = 0;
  }

  frame(payload: Payload): void {
    const samples = decode(payload);
    const sampleRate = Number(payload.sampleRate) || 8_000;
    if (!samples.length) return;
    this.player?.play(samples, sampleRate);
    this.frames++;
    this.seconds += samples.length / sampleRate;
    this.peaks = [...this.peaks, samples.reduce((peak, sample) => Math.max(peak, Math.abs(sample)), 0)].slice(-bars);
    const loudest = Math.round(100 * Math.max(...this.peaks));
    byId("heard").textContent = `${this.frames} frames, ${this.seconds.toFixed(1)} s, ${String(payload.encoding)} ${sampleRate / 1000} kHz, peak ${loudest}\u00a0%`;
    this.draw();
  }

  stop(): void {
    this.player?.stop();
  }

  end(): void {
    this.player?.close();
    this.player = undefined;
  }

  private draw(): void {
    cancelAnimationFrame(this.drawing);
    this.drawing = requestAnimationFrame(() => {
      const { canvas } = this;
      const width = (canvas.width = canvas.clientWidth * devicePixelRatio);
      const height = (canvas.height = canvas.clientHeight * devicePixelRatio);
      const pen = canvas.getContext("2d")!;
      pen.fillStyle = getComputedStyle(canvas).color;
      const step = width / bars;
      for (let at = 0; at < bars; at++) {
        const peak = this.peaks[this.peaks.length - bars + at] ?? 0;
        const size = Math.max(devicePixelRatio, Math.sqrt(peak) * height);
        pen.fillRect(at * step, (height - size) / 2, Math.max(1, step * 0.6), size);
      }
    });
  }
}
