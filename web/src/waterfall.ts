import type { TimelineEvent } from "./api.js";
import { byId, make } from "./dom.js";
import type { Entry } from "./timeline.js";
import { formatMs, type Part, parts, percentile, type Turn, turnsOf } from "./turns.js";

const names = Object.keys(parts) as Part[];
const maxTurns = 50;
const flashMs = 900;

/** Shows where the time of each turn goes, and the hops between the participants as events arrive. */
export class Waterfall {
  private readonly timers = new Map<Element, ReturnType<typeof setTimeout>>(); // of lit hops
  private shown = "";

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
    const turns = turnsOf(entries).slice(-maxTurns);
    const state = JSON.stringify(turns.map(({ node, ...turn }) => turn));
    if (state === this.shown) return; // keeps the focus
    this.shown = state;
    const answered = turns.filter(({ total }) => total !== undefined);
    const row = (name: string, meaning: string, values: (number | undefined)[]) => {
      const known = values.filter((value) => value !== undefined);
      const cells = [50, 95].map((percent) => make("td", {}, formatMs(percentile(known, percent))));
      return make("tr", {}, make("th", { scope: "row", "data-part": name, title: meaning }, name), ...cells, make("td", { class: "meaning" }, meaning));
    };
    byId("turn-percentiles").replaceChildren(
      ...names.map((name) => row(name, parts[name], answered.map(({ times }) => times[name]))),
      row("total", "Until the answer is displayed, and its speech.", answered.map(({ total }) => total)),
    );
    const total = answered.map(({ total }) => total!);
    byId("turn-summary").textContent = answered.length ? `${answered.length} answered, p50 ${formatMs(percentile(total, 50))}, p95 ${formatMs(percentile(total, 95))}` : "No answers yet. Say something: each utterance becomes a turn.";
    const longest = Math.max(1, ...total);
    byId("turn-list").replaceChildren(...turns.toReversed().map((turn) => this.row(turn, longest)));
  }

  private row(turn: Turn<Entry>, longest: number): HTMLElement {
    const { text, times, total, parkedMs } = turn;
    const known = names.flatMap((name) => (times[name] === undefined ? [] : [`${name} ${formatMs(times[name])}`]));
    const description = [...(total === undefined ? ["no answer yet"] : known), ...(parkedMs === undefined ? [] : [`parked ${formatMs(parkedMs)}`])].join(", ");
    const button = make(
      "button",
      { type: "button", title: description },
      make("span", { class: "said", dir: "auto" }, text, ...(parkedMs === undefined ? [] : [make("small", {}, ` parked ${formatMs(parkedMs)}`)])),
      bar(total === undefined ? {} : times, longest),
      make("span", { class: "ms" }, total === undefined ? "…" : formatMs(total)),
      make("span", { class: "hidden" }, `: ${description}`),
    );
    button.onclick = () => this.select(turn.node);
    return make("li", {}, button);
  }
}

/** A horizontal bar with the parts of a turn. */
function bar(times: Turn["times"], longest: number): SVGElement {
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
