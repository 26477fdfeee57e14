import type { Frame } from "@telapi/sdk";
import type { Lane, TimelineEvent } from "./api.js";
import { byId, keepScrolledToEnd, make, timeOfDay } from "./dom.js";
import { Inspector } from "./inspector.js";

const lanes: Lane[] = ["browser", "service", "runtime", "bot"];
const kinds = ["frame", "entry", "callback", "command", "denied", "timer", "speech", "http", "session", "audio", "ping"];
const maxRows = 1_000;
/** Audio frames within this time of the last one share its row. */
const sameUtteranceMs = 2_000;

interface Row {
  event: TimelineEvent;
  item: HTMLElement;
  searchText: string; // lower case
  frames: number; // audio frames in this row
  lastAt: number; // time of the last event in this row
}

/** The timeline panel: one row per event, ordered by time. */
export class Timeline {
  private readonly list = byId("timeline");
  private readonly pause = byId<HTMLButtonElement>("pause");
  private readonly lane = byId<HTMLSelectElement>("lane");
  private readonly kind = byId<HTMLSelectElement>("kind");
  private readonly search = byId<HTMLInputElement>("search");
  private readonly inspector = new Inspector(this.list);
  private rows: Row[] = [];
  private pausedEvents: TimelineEvent[] = []; // received while paused
  private clockOffset = -Infinity; // of the service's clock in milliseconds, estimated from its fastest frame

  constructor() {
    this.lane.append(...lanes.map((lane) => make("option", {}, lane)));
    this.kind.append(...kinds.map((kind) => make("option", {}, kind)));
    this.lane.onchange = this.kind.onchange = this.search.oninput = () => this.applyFilter();
    byId("clear").onclick = () => this.clear();
    this.pause.onclick = () => {
      this.pause.ariaPressed = String(!this.paused);
      if (!this.paused) for (const event of this.pausedEvents.splice(0)) this.show(event);
      this.updateCount();
    };
    this.list.onkeydown = (event) => this.moveFocus(event);
    this.updateCount();
  }

  private get paused(): boolean {
    return this.pause.ariaPressed === "true";
  }

  clear(): void {
    this.rows = [];
    this.pausedEvents = [];
    this.list.replaceChildren();
    this.inspector.close();
    this.updateCount();
  }

  add(event: TimelineEvent): void {
    if (event.kind === "heartbeat") return;
    if (!this.paused) this.show(event);
    else if (this.pausedEvents.push(event) > maxRows) this.pausedEvents.shift();
    this.updateCount();
  }

  /** Adds an event of the feed. A frame of the feed becomes the hop between service and runtime; fromConnection adds the other hop. */
  fromFeed(event: TimelineEvent): void {
    if (event.kind !== "frame") return this.add(event);
    const audio = event.title.startsWith("audio") ? { kind: "audio", title: "audio (sampled)" } : {};
    this.add({ ...event, ...audio, ...(event.lane === "browser" ? { lane: "service" } : { to: "service" }) });
  }

  /** Adds a frame between this page and the service. */
  fromConnection({ direction, message, duplicate }: Frame): void {
    const { type, sessionId, streamId, timestamp, status, error } = message;
    if (direction === "to_browser" && !streamId) this.clockOffset = Math.max(this.clockOffset, timestamp - Date.now());
    const payload = message.chat ?? status ?? message.control ?? message.action ?? message.browserAction ?? error ?? {};
    const summary = [payload.text, payload.event, payload.command, payload.name, payload.type, payload.code].find((part) => typeof part === "string");
    const sent = direction === "to_ari";
    this.add({
      at: this.now(),
      lane: sent ? "browser" : "service",
      to: sent ? "service" : "browser",
      kind: type === "audio" ? "audio" : /^p[io]ng$/.test(type) ? "ping" : "frame",
      title: type + (summary ? `: ${String(summary)}` : "") + (duplicate ? " (duplicate, dropped)" : ""),
      sessionId,
      data: message,
    });
  }

  /** Adds an event of the page itself. */
  note(title: string, data?: unknown): void {
    this.add({ at: this.now(), lane: "browser", kind: "session", title, sessionId: "", data });
  }

  /** The time by the service's clock, as in the feed. */
  private now(): number {
    return Date.now() + (Number.isFinite(this.clockOffset) ? this.clockOffset : 0);
  }

  private show(event: TimelineEvent): void {
    if (event.kind === "audio" && this.mergeIntoRow(event)) return;
    const row: Row = { event, item: renderRow(event), searchText: (event.title + JSON.stringify(event.data ?? "")).toLowerCase(), frames: 1, lastAt: event.at };
    row.item.querySelector("button")!.onclick = () => this.inspector.open(row.event, row.item);
    row.item.hidden = !this.matches(row);
    const index = this.rows.findLastIndex((other) => isBefore(other.event, event)) + 1;
    keepScrolledToEnd(this.list, () => {
      this.list.insertBefore(row.item, this.rows[index]?.item ?? null);
      this.rows.splice(index, 0, row);
      if (this.rows.length > maxRows) this.rows.shift()!.item.remove();
    });
  }

  /** Adds an audio frame to the row of the previous one in the same lane. Returns false if there is none. */
  private mergeIntoRow(event: TimelineEvent): boolean {
    const row = this.rows.findLast(({ event: { kind, lane } }) => kind === "audio" && lane === event.lane);
    if (!row || event.at - row.lastAt > sameUtteranceMs) return false;
    row.lastAt = event.at;
    row.event = { ...event, at: row.event.at, title: event.title === "audio" ? `audio, ${++row.frames} frames` : event.title };
    row.item.querySelector(".title")!.textContent = row.event.title;
    return true;
  }

  private matches({ event, searchText }: Row): boolean {
    const lane = this.lane.value;
    return (!lane || event.lane === lane || event.to === lane) && (!this.kind.value || event.kind === this.kind.value) && searchText.includes(this.search.value.toLowerCase());
  }

  private applyFilter(): void {
    for (const row of this.rows) row.item.hidden = !this.matches(row);
    this.list.scrollTop = this.list.scrollHeight;
    this.updateCount();
  }

  private updateCount(): void {
    const shown = this.rows.filter(({ item }) => !item.hidden).length;
    byId("count").textContent = `${shown} of ${this.rows.length} events` + (this.pausedEvents.length ? `, ${this.pausedEvents.length} paused` : "");
  }

  /** Moves between rows with the arrow keys. */
  private moveFocus(event: KeyboardEvent): void {
    const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const buttons = this.rows.filter(({ item }) => !item.hidden).map(({ item }) => item.querySelector("button")!);
    const index = buttons.indexOf(document.activeElement as HTMLButtonElement);
    buttons.at(index < 0 ? -1 : Math.min(Math.max(index + step, 0), buttons.length - 1))?.focus();
  }
}

/** Orders by time; within the same millisecond, an event that reaches the browser comes last. */
function isBefore(a: TimelineEvent, b: TimelineEvent): boolean {
  return a.at < b.at || (a.at === b.at && (b.to === "browser" || a.to !== "browser"));
}

/** The decision that an event reports, if any. */
function decisionOf({ kind, lane, title }: TimelineEvent): "allowed" | "denied" | "rejected" | "" {
  if (kind === "denied") return "denied";
  if (kind === "command" && lane === "service") return "allowed";
  if (kind === "callback" && lane === "service" && /^[45]/.test(title)) return "rejected";
  return kind === "frame" && title.startsWith("error") ? "rejected" : "";
}

function renderRow(event: TimelineEvent): HTMLElement {
  const { at, lane, to, kind, title } = event;
  const [source, target] = [lanes.indexOf(lane), lanes.indexOf(to ?? lane)];
  const arrow = make("i", { "data-lane": lane, "data-direction": source === target ? "none" : source < target ? "right" : "left" });
  arrow.style.gridColumn = `${Math.min(source, target) + 1} / ${Math.max(source, target) + 2}`;
  arrow.style.setProperty("--lanes", String(Math.abs(source - target) + 1));
  const decision = decisionOf(event);
  const button = make(
    "button",
    { type: "button", tabindex: "-1" },
    make("time", {}, timeOfDay(at)),
    make("span", { class: "hop" }, arrow),
    make("span", { class: "kind" }, make("span", { class: "route" }, to ? `${lane} to ${to}: ` : `${lane}: `), kind),
    make("span", { class: "title" }, ...(decision ? [make("strong", { "data-decision": decision }, decision), " "] : []), title),
  );
  return make("li", { "data-kind": kind }, button);
}
