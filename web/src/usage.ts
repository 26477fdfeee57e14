import type { Api, TimelineEvent } from "./api.js";
import { byId, make } from "./dom.js";

/** Delay until new usage is in the report, on most machines. */
const refreshDelayMs = 1_500;
/** Some usage takes longer: the report is read again for a minute. Each request counts towards the daily quota. */
const refreshMs = 10_000;
const refreshes = 6;

/** The usage panel: characters by group, billed and cached, and the cache hits of this session. */
export class UsagePanel {
  private readonly grouping = byId<HTMLSelectElement>("grouping");
  private api: Api | undefined;
  private refreshTimer: ReturnType<typeof setTimeout> | undefined;
  private requests = 0; // the newest response is shown, even if an older one arrives later
  private cacheHits = 0;
  private utterances = 0;

  constructor() {
    this.grouping.onchange = () => void this.refresh();
    const panel = byId("tab-usage");
    new MutationObserver(() => panel.hidden || this.refreshIn(0)).observe(panel, { attributeFilter: ["hidden"] }); // it is selected
  }

  /** Shows the usage of the team of a key, if there is one, and counts the cache hits of a new session. */
  start(api?: Api): void {
    this.api = api;
    this.cacheHits = this.utterances = 0;
    this.showHits();
    this.refreshIn(0);
  }

  /** Counts an event if it reports speech. */
  addEvent({ kind, lane, data }: TimelineEvent): void {
    if (kind !== "speech" || lane !== "service") return;
    this.utterances++;
    if ((data as { cached?: boolean }).cached) this.cacheHits++;
    this.showHits();
    this.refreshIn(refreshDelayMs);
  }

  /** Reads the report after a delay, and again while it is visible and readable. */
  private refreshIn(delayMs: number, left = refreshes): void {
    clearTimeout(this.refreshTimer);
    if (!this.api) return;
    this.refreshTimer = setTimeout(async () => {
      const read = await this.refresh();
      if (read && left && !byId("tab-usage").hidden) this.refreshIn(refreshMs, left - 1);
    }, delayMs);
  }

  private showHits(): void {
    byId("hits").textContent = `${this.cacheHits} of ${this.utterances}`;
  }

  /** Returns whether this was the newest request, and its response is shown. */
  private async refresh(): Promise<boolean> {
    const request = ++this.requests;
    const usage = await this.api?.usage(this.grouping.value).catch(() => undefined);
    if (!usage || request !== this.requests) return false;
    const { total, buckets } = usage;
    byId("characters").textContent = total.characters.toLocaleString("en");
    byId("billed").textContent = total.billedCharacters.toLocaleString("en");
    byId("cached").textContent = total.cachedCharacters.toLocaleString("en");
    byId("no-usage").hidden = total.characters > 0;
    byId("usage-legend").hidden = !total.characters;
    const maximum = Math.max(1, ...buckets.map(({ characters }) => characters));
    byId("chart").replaceChildren(
      ...buckets.slice(-10).map(({ start, group, characters, billedCharacters, cachedCharacters }) => {
        const name = group === undefined ? start : group || "unknown";
        return make("figure", {}, make("figcaption", {}, make("span", {}, name), make("span", {}, characters.toLocaleString("en"))), bar(maximum, billedCharacters, cachedCharacters));
      }),
    );
    return true;
  }
}

/** A horizontal bar: billed, then cached characters. */
function bar(maximum: number, billed: number, cached: number): SVGElement {
  const svg = (name: string, attributes: Record<string, string | number>, ...children: SVGElement[]): SVGElement => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name) as SVGElement;
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, String(value));
    element.append(...children);
    return element;
  };
  return svg(
    "svg",
    { viewBox: `0 0 ${maximum} 1`, preserveAspectRatio: "none", role: "img", "aria-label": `${billed} characters billed, ${cached} from the cache` },
    svg("rect", { width: billed, height: 1, "data-key": "billed" }),
    svg("rect", { x: billed, width: cached, height: 1, "data-key": "cached" }),
  );
}
