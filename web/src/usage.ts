import type { Api, TimelineEvent } from "./api.js";
import { byId, make } from "./dom.js";

/** Delay until new usage is in the report, on most machines. */
const refreshDelayMs = 1_500;
/** How often the report is read while it is visible: some usage takes longer. Each request counts towards the daily quota. */
const refreshMs = 10_000;

/** The usage panel: characters by group, billed and cached, and the cache hits of this session. */
export class UsagePanel {
  private readonly grouping = byId<HTMLSelectElement>("grouping");
  private api: Api | undefined;
  private refreshTimer: ReturnType<typeof setTimeout> | undefined;
  private cacheHits = 0;
  private utterances = 0;

  constructor() {
    this.grouping.onchange = () => void this.refresh();
    const panel = byId("tab-usage");
    const refreshVisible = () => panel.hidden || document.hidden || void this.refresh();
    setInterval(refreshVisible, refreshMs);
    new MutationObserver(refreshVisible).observe(panel, { attributeFilter: ["hidden"] }); // the panel is selected
  }

  /** Shows the usage of a team, and counts the cache hits of a new session. */
  start(api: Api): void {
    this.api = api;
    this.cacheHits = this.utterances = 0;
    this.showHits();
    void this.refresh();
  }

  /** Counts an event if it reports speech. */
  addEvent({ kind, lane, data }: TimelineEvent): void {
    if (kind !== "speech" || lane !== "service") return;
    this.utterances++;
    if ((data as { cached?: boolean }).cached) this.cacheHits++;
    this.showHits();
    clearTimeout(this.refreshTimer);
    this.refreshTimer = setTimeout(() => void this.refresh(), refreshDelayMs);
  }

  private showHits(): void {
    byId("hits").textContent = `${this.cacheHits} of ${this.utterances}`;
  }

  private async refresh(): Promise<void> {
    const { api, grouping } = this;
    const { value } = grouping;
    const usage = await api?.usage(value).catch(() => undefined);
    if (!usage || api !== this.api || value !== grouping.value) return; // outdated
    const { total, buckets } = usage;
    byId("characters").textContent = total.characters.toLocaleString("en");
    byId("billed").textContent = total.billedCharacters.toLocaleString("en");
    byId("cached").textContent = total.cachedCharacters.toLocaleString("en");
    const maximum = Math.max(1, ...buckets.map(({ characters }) => characters));
    byId("chart").replaceChildren(
      ...buckets.slice(-10).map(({ start, group, characters, billedCharacters, cachedCharacters }) => {
        const name = group === undefined ? start : group || "unknown";
        return make("figure", {}, make("figcaption", {}, make("span", {}, name), make("span", {}, characters.toLocaleString("en"))), bar(maximum, billedCharacters, cachedCharacters));
      }),
    );
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
