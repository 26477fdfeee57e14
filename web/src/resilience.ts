import type { Session } from "@telapi/sdk";
import { Api, type Instance, type TimelineEvent } from "./api.js";
import { byId, make } from "./dom.js";
import { type Counts, Ledger } from "./ledger.js";
import { network } from "./network.js";

const refreshMs = 2_000;
/** How an instance is shown if there is only one, which the page can't restart. */
const onlyInstance: Instance = { number: 1, state: "running", serving: true };

/** The resilience panel: disturbs the connection, the network and the instances, and counts what became of the messages. */
export class ResiliencePanel {
  private readonly panel = byId("tab-resilience");
  private api: Api | undefined;
  private session: Session | undefined;
  private ledger = new Ledger(false);
  private showing = false; // the counts will be shown soon
  private readonly rows: { text: HTMLElement; button: HTMLButtonElement }[] = [];

  /** Takes the number of instances that can be killed, whether the service is telapi dev, and a function that reports what happened to one. */
  constructor(public instances: number, private readonly development: boolean, private readonly onChange: (title: string) => void) {
    this.showSlider("latency", (value) => (network.latencyMs = value), (value) => `${value} ms`);
    this.showSlider("loss", (value) => (network.loss = value / 100), (value) => `${value} %`);
    this.showInstances(instances ? [] : [onlyInstance]);
    setInterval(() => void this.refresh(), refreshMs);
    new MutationObserver(() => void this.refresh()).observe(this.panel, { attributeFilter: ["hidden"] }); // the panel is selected
  }

  /** Uses an API client, before there is a session. */
  use(api: Api): void {
    this.api = api;
    void this.refresh();
  }

  /** Counts the messages of a session. */
  showSession(api: Api, session: Session, resumed: boolean): void {
    this.api = api;
    this.session = session;
    this.ledger = new Ledger(resumed);
    session.on("frame", (frame) => {
      this.ledger.addFrame(frame);
      this.showCounts();
    });
    session.on("state", ({ state }) => {
      if (!this.instances) this.showInstances([onlyInstance]);
      void this.refresh(state === "connected"); // after a restart, perhaps with other instances
    });
    this.showCounts();
  }

  addEvent(event: TimelineEvent): void {
    this.ledger.addEvent(event);
    this.showCounts();
  }

  private showCounts(): void {
    if (this.showing) return;
    this.showing = true;
    setTimeout(() => {
      this.showing = false;
      for (const [name, count] of Object.entries(this.ledger.counts) as [keyof Counts, number][]) byId(`${name}-count`).textContent = String(count);
      byId("counts").dataset.complete = String(!this.ledger.counts.lost && !this.ledger.counts.duplicates);
    }, 50);
  }

  private showSlider(id: string, use: (value: number) => void, format: (value: number) => string): void {
    const slider = byId<HTMLInputElement>(id);
    const apply = () => {
      use(Number(slider.value));
      byId(`${id}-value`).textContent = slider.ariaValueText = format(Number(slider.value));
    };
    slider.oninput = apply;
    slider.value = "0"; // browsers restore it after a reload
    apply();
  }

  /** Asks for the instances if the panel is visible, or if forced. */
  private async refresh(forced = false): Promise<void> {
    if (!this.api || !forced && (this.panel.hidden || document.hidden)) return;
    try {
      const { apiKey, instances = 0 } = await Api.config();
      if (this.development && !apiKey) return void setTimeout(() => void this.refresh(forced), refreshMs); // it is starting
      this.instances = instances;
      this.showInstances(this.instances ? await this.api.instances(this.session?.sessionId) : [onlyInstance]);
    } catch {
      // The next refresh tries again.
    }
  }

  private showInstances(instances: Instance[]): void {
    byId("one-instance").hidden = this.instances > 0;
    while (this.rows.length < instances.length) this.rows.push({ text: make("span"), button: make("button", { type: "button" }) });
    this.rows.length = instances.length;
    if (byId("instances").childElementCount !== this.rows.length) byId("instances").replaceChildren(...this.rows.map(({ text, button }) => make("li", { class: "row" }, text, button)));
    for (const [index, { number, state, pid, serving }] of instances.entries()) {
      const { text, button } = this.rows[index]!;
      const served = serving && this.session?.state === "connected" ? ", serves this connection" : "";
      text.textContent = `Instance ${number}: ${state}${pid ? `, process ${pid}` : ""}${served}`;
      text.dataset.state = state;
      button.textContent = `${state === "stopped" ? "Restart" : "Kill"} instance ${number}`;
      button.disabled = !this.instances || state === "starting";
      button.onclick = () => void this.change(number, state === "stopped" ? "start" : "kill", button);
    }
  }

  private async change(number: number, action: "kill" | "start", button: HTMLButtonElement): Promise<void> {
    button.ariaBusy = "true";
    this.onChange(action === "kill" ? `kills instance ${number}` : `restarts instance ${number}`);
    try {
      await this.api!.changeInstance(number, action);
      byId("instance-error").textContent = "";
    } catch (error) {
      byId("instance-error").textContent = (error as Error).message;
    }
    button.ariaBusy = null;
    await this.refresh();
  }
}
