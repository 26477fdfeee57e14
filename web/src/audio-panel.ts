import type { Payload } from "@telapi/sdk";
import { byId } from "./dom.js";
import { decode, Player } from "./speech.js";

/** Number of bars in the level display, one per frame. */
const maxBars = 160;

/** The audio panel: plays audio and shows the level of the last frames. */
export class AudioPanel {
  private readonly canvas = byId<HTMLCanvasElement>("wave");
  private readonly mute = byId<HTMLButtonElement>("mute");
  private player: Player | undefined;
  private peaks: number[] = [];
  private frames = 0;
  private seconds = 0;
  private drawing = 0; // ID of the scheduled animation frame

  constructor() {
    this.mute.onclick = () => {
      this.muted = !this.muted;
    };
    for (const [target, event] of [[matchMedia("(prefers-color-scheme: dark)"), "change"], [window, "resize"], [window, "themechange"]] as const) {
      target.addEventListener(event, () => this.draw());
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

  /** Starts playback for a new session. Must be called in a click handler: browsers block audio before that. */
  start(): void {
    this.close();
    this.player = new Player(this.muted);
    this.peaks = [];
    this.frames = this.seconds = 0;
  }

  /** Plays a frame and shows its level. */
  addFrame(payload: Payload): void {
    const samples = decode(payload);
    const sampleRate = Number(payload.sampleRate) || 8_000;
    if (!samples.length) return;
    this.player?.play(samples, sampleRate);
    this.frames++;
    this.seconds += samples.length / sampleRate;
    this.peaks = [...this.peaks, samples.reduce((peak, sample) => Math.max(peak, Math.abs(sample)), 0)].slice(-maxBars);
    const loudest = Math.round(100 * Math.max(...this.peaks));
    byId("audio-stats").textContent = `${this.frames} frames, ${this.seconds.toFixed(1)} s, ${String(payload.encoding)} ${sampleRate / 1000} kHz, peak ${loudest}\u00a0%`;
    this.draw();
  }

  /** Discards audio that was not played yet. */
  stopPlayback(): void {
    this.player?.stop();
  }

  private close(): void {
    this.player?.close();
    this.player = undefined;
  }

  private draw(): void {
    cancelAnimationFrame(this.drawing);
    this.drawing = requestAnimationFrame(() => {
      const { canvas } = this;
      const width = (canvas.width = canvas.clientWidth * devicePixelRatio);
      const height = (canvas.height = canvas.clientHeight * devicePixelRatio);
      const context = canvas.getContext("2d")!;
      context.fillStyle = getComputedStyle(canvas).color;
      const step = width / maxBars;
      for (let bar = 0; bar < maxBars; bar++) {
        const peak = this.peaks[this.peaks.length - maxBars + bar] ?? 0;
        const size = Math.max(devicePixelRatio, Math.sqrt(peak) * height);
        context.fillRect(bar * step, (height - size) / 2, Math.max(1, step * 0.6), size);
      }
    });
  }
}
