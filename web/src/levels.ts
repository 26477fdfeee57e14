import { byId } from "./dom.js";

/** Number of bars in the display, and the time that each stands for. */
const [maxBars, barMs] = [120, 60];
/** The quietest level that is shown, in decibels below full scale. */
const floor = -60;
/** A caller has just spoken if one of this many bars is higher than this, on a scale from 0 to 1. */
const [recentBars, audible] = [10, 0.3];

interface Bar {
  levels: readonly [you: number, bot: number]; // from 0 to 1
  marked: boolean;
}

/** Shows the levels of the caller and the bot: now as meters, and the last seconds as bars, one above the other. */
export class Levels {
  private readonly canvas = byId<HTMLCanvasElement>("wave");
  private readonly meters = [byId("microphone-level"), byId("speaker-level")] as const;
  private bars: Bar[] = [];
  private read: (() => [number, number]) | undefined;
  private timer: ReturnType<typeof setTimeout> | undefined; // of the next bar
  private frame = 0; // ID of the scheduled animation frame

  constructor() {
    for (const [target, event] of [[matchMedia("(prefers-color-scheme: dark)"), "change"], [window, "resize"], [window, "themechange"]] as const) {
      target.addEventListener(event, () => requestAnimationFrame(() => this.draw()));
    }
    requestAnimationFrame(() => this.draw());
  }

  /** Shows the levels that the function returns, the root mean square from 0 to 1, until the next start or stop. */
  start(read: () => [you: number, bot: number]): void {
    this.stop();
    this.read = read;
    this.bars = [];
    this.update();
  }

  stop(): void {
    clearTimeout(this.timer);
    cancelAnimationFrame(this.frame);
    this.read = undefined;
    this.setMeters([0, 0]);
  }

  /** Marks the current time if the caller has just spoken. Returns whether it did. */
  mark(): boolean {
    if (this.read) this.addBar();
    const spoken = this.bars.slice(-recentBars).some(({ levels: [you] }) => you > audible);
    if (spoken) this.bars.at(-1)!.marked = true;
    return spoken;
  }

  /** Adds a bar now and after each barMs. It requests a frame for each bar only, because a frame takes processor time even if nothing has changed. */
  private update(): void {
    this.addBar();
    this.draw();
    this.timer = setTimeout(() => (this.frame = requestAnimationFrame(() => this.update())), barMs);
  }

  private addBar(): void {
    const [you, bot] = this.read!();
    const levels = [scale(you), scale(bot)] as const;
    this.setMeters(levels);
    this.bars = [...this.bars, { levels, marked: false }].slice(-maxBars);
  }

  private setMeters(levels: readonly [number, number]): void {
    this.meters.forEach((meter, index) => {
      meter.style.setProperty("--level", String(levels[index]));
      meter.ariaValueNow = String(Math.round(100 * levels[index]!));
    });
  }

  private draw(): void {
    const { canvas, bars } = this;
    const width = (canvas.width = canvas.clientWidth * devicePixelRatio);
    const height = (canvas.height = canvas.clientHeight * devicePixelRatio);
    const context = canvas.getContext("2d")!;
    const colors = this.meters.map((meter) => getComputedStyle(meter).color);
    const step = width / maxBars;
    bars.forEach(({ levels, marked }, index) => {
      const x = (maxBars - bars.length + index) * step;
      levels.forEach((level, row) => {
        const size = Math.max(devicePixelRatio, (level * height) / 2);
        context.fillStyle = colors[row]!;
        context.fillRect(x, row ? height / 2 : height / 2 - size, Math.max(1, step * 0.6), size);
      });
      if (!marked) return;
      context.fillStyle = getComputedStyle(canvas).color;
      context.fillRect(x, 0, 2 * devicePixelRatio, height);
    });
  }
}

/** Converts a root mean square to a position between the floor and full scale. */
function scale(level: number): number {
  return Math.max(0, 1 - (20 * Math.log10(Math.max(level, 1e-9))) / floor);
}
