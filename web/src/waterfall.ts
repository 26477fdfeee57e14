import type { TimelineEvent } from "./api.js";
import { byId, make } from "./dom.js";
import type { Entry } from "./timeline.js";
import { formatMs, parts, percentile, turnsOf } from "./turns.js";
import { stages, voiceTurnsOf } from "./voice-turns.js";

const maxTurns = 50;
const flashMs = 900;

/** A turn as a bar of a chart. */
interface Bar {
  text: string;
  node: Entry;
  times: Partial<Record<string, number>>; // of its parts
  total: number | undefined; // undefined until the answer has arrived
  outcome?: string | undefined; // why no answer will arrive
  note: string;
}

/** Shows where the time of each turn goes, and the hops between the participants as events arrive. */
export class Waterfall {
  private readonly timers = new Map<Element, ReturnType<typeof setTimeout>>(); // of lit hops
  private readonly charts = {
    voice: new Chart("voice", stages, "response", "From the end of speech to the first audio.", (entry) => this.select(entry)),
    typed: new Chart("turn", parts, "total", "Until the answer is displayed, and its speech.", (entry) => this.select(entry)),
  };

  constructor(private readonly select: (entry: Entry) => void) {
    this.show([]);
  }

  /** Lights up the hop of an event. */
  light({ lane, to, kind }: TimelineEvent): void {
    if (kind === "mark" || kind === "ping") return;
    for (const hop of [to && [lane, to].sort().join("-"), kind === "speech" && lane === "service" && "service-speech"]) {
      const path = hop && document.querySelector(`#flow [data-hop="${hop}"]`);
      if (!path) continue;
      path.setAttribute("data-lane", lane);
      path.setAttribute("data-lit", "");
      clearTimeout(this.timers.get(path));
      this.timers.set(path, setTimeout(() => path.removeAttribute("data-lit"), flashMs));
    }
  }

  show(entries: readonly Entry[]): void {
    const spoken = voiceTurnsOf(entries).map(({ text, node, times, response, interrupted }) => ({ text, node, times, total: response, note: interrupted ? "interrupted" : "" }));
    const typed = turnsOf(entries).filter((turn) => !turn.spoken).map(({ text, node, times, total, outcome, part, parkedMs, firstTextMs }) => {
      const notes = [...(part ? [`part ${part}`] : []), ...(parkedMs === undefined ? [] : [`parked ${formatMs(parkedMs)}`]), ...(firstTextMs === undefined ? [] : [`first text ${formatMs(firstTextMs)}`])];
      return { text, node, times, total, outcome, note: notes.join(", ") };
    });
    this.charts.voice.show(spoken);
    this.charts.typed.show(typed);
    byId("voice-chart").hidden = !spoken.length;
    byId("turn-chart").hidden = !typed.length && spoken.length > 0;
  }
}

/** A bar for each turn, and the percentiles of its parts. */
class Chart {
  private shown = "";

  /** Takes the prefix of the IDs of its elements, the parts with their meaning, and the name and meaning of the total. */
  constructor(
    private readonly id: string,
    private readonly parts: Record<string, string>,
    private readonly totalName: string,
    private readonly totalMeaning: string,
    private readonly select: (entry: Entry) => void,
  ) {}

  show(all: Bar[]): void {
    const bars = all.slice(-maxTurns);
    const state = JSON.stringify(bars.map(({ node, ...bar }) => bar));
    if (state === this.shown) return; // keeps the focus
    this.shown = state;
    const answered = bars.filter(({ total }) => total !== undefined);
    const totals = answered.map(({ total }) => total!);
    byId(`${this.id}-percentiles`).replaceChildren(
      ...Object.entries(this.parts).map(([name, meaning]) => percentileRow(name, meaning, answered.map(({ times }) => times[name]))),
      percentileRow(this.totalName, this.totalMeaning, totals),
    );
    byId(`${this.id}-summary`).textContent = answered.length ? `${answered.length} answered, p50 ${formatMs(percentile(totals, 50))}, p95 ${formatMs(percentile(totals, 95))}` : "No answers yet. Say something: each utterance becomes a turn.";
    const longest = Math.max(1, ...answered.map(({ times }) => sum(times)));
    byId(`${this.id}-list`).replaceChildren(...bars.toReversed().map((bar) => this.row(bar, longest)));
  }

  private row({ text, times, total, outcome, note, node }: Bar, longest: number): HTMLElement {
    const known = Object.keys(this.parts).flatMap((name) => (times[name] === undefined ? [] : [`${name} ${formatMs(times[name])}`]));
    const description = [...(total === undefined ? [outcome ? `no answer: ${outcome}` : "no answer yet"] : known), ...(note ? [note] : [])].join(", ");
    const button = make(
      "button",
      { type: "button", title: description },
      make("span", { class: "said", dir: "auto" }, text, ...(note ? [make("small", {}, ` ${note}`)] : [])),
      drawBar(Object.keys(this.parts), total === undefined ? {} : times, longest),
      make("span", { class: "ms" }, total === undefined ? (outcome ?? "…") : formatMs(total)),
      make("span", { class: "hidden" }, `: ${description}`),
    );
    button.onclick = () => this.select(node);
    return make("li", {}, button);
  }
}

function percentileRow(name: string, meaning: string, values: (number | undefined)[]): HTMLElement {
  const known = values.filter((value) => value !== undefined);
  const cells = [50, 95].map((percent) => make("td", {}, formatMs(percentile(known, percent))));
  return make("tr", {}, make("th", { scope: "row", "data-part": name, title: meaning }, name), ...cells, make("td", { class: "meaning" }, meaning));
}

/** A horizontal bar with the parts of a turn. */
function drawBar(names: string[], times: Bar["times"], longest: number): SVGElement {
  const namespace = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(namespace, "svg");
  for (const [name, value] of Object.entries({ viewBox: `0 0 ${longest} 1`, preserveAspectRatio: "none", "aria-hidden": "true" })) svg.setAttribute(name, value);
  let x = 0;
  for (const name of names) {
    const width = times[name] ?? 0;
    if (!width) continue;
    const rect = document.createElementNS(namespace, "rect");
    for (const [key, value] of Object.entries({ x, width, height: 1, "data-part": name })) rect.setAttribute(key, String(value));
    svg.append(rect);
    x += width;
  }
  return svg;
}

function sum(times: Bar["times"]): number {
  return Object.values(times).reduce<number>((total, ms) => total + (ms ?? 0), 0);
}
