import type { Frame } from "@telapi/sdk";
import type { Lane, TimelineEvent } from "./api.js";
import { byId, clock, keepScrolledToEnd, make } from "./dom.js";
import { Inspector } from "./inspector.js";

const lanes: Lane[] = ["browser", "service", "runtime", "bot"];
const kinds = ["frame", "entry", "callback", "command", "denied", "timer", "speech", "http", "session", "audio", "ping"];
const keptRows = 1_000;
/** Audio frames within this time of the last one share a row. */
const sameUtteranceMs = 2_000;

interface Row {
  event: TimelineEvent;
  item: HTMLElement;
  text: string;
  times: number;
  until: number; // time of the last event in this row
}

/** The timeline panel: one row per event, ordered by time. */
export class Timeline {
  private readonly list = byId("timeline");
  private readonly pause = byId<HTMLButtonElement>("pause");
  private readonly lane = byId<HTMLSelectElement>("lane");
  private readonly kind = byId<HTMLSelectElement>("kind");
  private readonly needle = byId<HTMLInputElement>("needle");
  private readonly inspector = new Inspector(this.list);
  private rows: Row[] = [];
  private waiting: TimelineEvent[] = [];
  private clockAhead = -Infinity; // of the service, in milliseconds, estimated from its fastest frame

  constructor() {
    this.lane.append(...lanes.map((lane) => make("option", {}, lane)));
    this.kind.append(...kinds.map((kind) => make("option", {}, kind)));
    this.lane.onchange = this.kind.onchange = this.needle.oninput = () => this.filter();
    byId("clear").onclick = () => this.clear();
    this.pause.onclick = () => {
      this.pause.ariaPressed = String(!this.paused);
      if (!this.paused) for (const event of this.waiting.splice(0)) this.show(event);
      this.count();
    };
    this.list.onkeydown = (event) => this.moveFocus(event);
    this.count();
  }

  private get paused(): boolean {
    return this.pause.ariaPressed === "true";
  }

  clear(): void {
    this.rows = [];
    this.waiting = [];
    this.list.replaceChildren();
    this.inspector.close();
    this.count();
  }

  add(event: TimelineEvent): void {
    if (event.kind === "heartbeat") return;
    if (!this.paused) this.show(event);
    else if (this.waiting.push(event) > keptRows) this.waiting.shift();
    this.count();
  }

  /** Adds an event of the feed. For frames the feed shows the hop between service and runtime only; this page sees the other one. */
  fromFeed(event: TimelineEvent): void {
    if (event.kind !== "frame") return this.add(event);
    const known = event.title.startsWith("audio") ? { kind: "audio", title: "audio (sampled)" } : {};
    this.add({ ...event, ...known, ...(event.lane === "browser" ? { lane: "service" } : { to: "service" }) });
  }

  /** A frame between this page and the service. */
  fromConnection({ direction, message, duplicate }: Frame): void {
    const { type, sessionId, streamId, timestamp, status, error } = message;
    if (direction === "to_browser" && !streamId) this.clockAhead = Math.max(this.clockAhead, timestamp - Date.now());
    const payload = message.chat ?? status ?? message.control ?? message.action ?? message.browserAction ?? error ?? {};
    const said = [payload.text, payload.event, payload.command, payload.name, payload.type, payload.code].find((part) => typeof part === "string");
    const outward = direction === "to_ari";
    this.add({
      at: this.now(),
      lane: outward ? "browser" : "service",
      to: outward ? "service" : "browser",
      kind: type === "audio" ? "audio" : /^p[io]ng$/.test(type) ? "ping" : "frame",
      title: type + (said ? `: ${String(said)}` : "") + (duplicate ? " (duplicate, dropped)" : ""),
      sessionId,
      data: message,
    });
  }

  /** Adds an event of the page itself. */
  note(title: string, data?: unknown): void {
    this.add({ at: this.now(), lane: "browser", kind: "session", title, sessionId: "", data });
  }

  /** The service's time, which the feed uses. */
  private now(): number {
    return Date.now() + (Number.isFinite(this.clockAhead) ? this.clockAhead : 0);
  }

  private show(event: TimelineEvent): void {
    if (event.kind === "audio" && this.joinsPrevious(event)) return;
    const row: Row = { event, item: rowOf(event), text: (event.title + JSON.stringify(event.data ?? "")).toLowerCase(), times: 1, until: event.at };
    row.item.querySelector("button")!.onclick = () => this.inspector.open(row.event, row.item);
    row.item.hidden = !this.matches(row);
    const at = this.rows.findLastIndex((earlier) => before(earlier.event, event)) + 1;
    keepScrolledToEnd(this.list, () => {
      this.list.insertBefore(row.item, this.rows[at]?.item ?? null);
      this.rows.splice(at, 0, row);
      if (this.rows.length > keptRows) this.rows.shift()!.item.remove();
    });
  }

  /** Adds an audio frame to the row of the previous one in the same lane. */
  private joinsPrevious(event: TimelineEvent): boolean {
    const row = this.rows.findLast(({ event: { kind, lane } }) => kind === "audio" && lane === event.lane);
    if (!row || event.at - row.until > sameUtteranceMs) return false;
    row.until = event.at;
    row.event = { ...event, at: row.event.at, title: event.title === "audio" ? `audio, ${++row.times} frames` : event.title };
    row.item.querySelector(".title")!.textContent = row.event.title;
    return true;
  }

  private matches({ event, text }: Row): boolean {
    const lane = this.lane.value;
    return (!lane || event.lane === lane || event.to === lane) && (!this.kind.value || event.kind === this.kind.value) && text.includes(this.needle.value.toLowerCase());
  }

  private filter(): void {
    for (const row of this.rows) row.item.hidden = !this.matches(row);
    this.list.scrollTop = this.list.scrollHeight;
    this.count();
  }

  private count(): void {
    const shown = this.rows.filter(({ item }) => !item.hidden).length;
    byId("count").textContent = `${shown} of ${this.rows.length} events` + (this.waiting.length ? `, ${this.waiting.length} paused` : "");
  }

  /** Moves between rows with the arrow keys. */
  private moveFocus(event: KeyboardEvent): void {
    const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const buttons = this.rows.filter(({ item }) => !item.hidden).map(({ item }) => item.querySelector("button")!);
    const at = buttons.indexOf(document.activeElement as HTMLButtonElement);
    buttons.at(at < 0 ? -1 : Math.min(Math.max(at + step, 0), buttons.length - 1))?.focus();
  }
}

/** Orders by time; within the same millisecond, an event that reaches the browser comes last. */
function before(a: TimelineEvent, b: TimelineEvent): boolean {
  return a.at < b.at || (a.at === b.at && (b.to === "browser" || a.to !== "browser"));
}

/** The decision that an event reports, if any. */
function decisionOf({ kind, lane, title }: TimelineEvent): "allowed" | "denied" | "rejected" | "" {
  if (kind === "denied") return "denied";
  if (kind === "command" && lane === "service") return "allowed";
  if (kind === "callback" && lane === "service" && /^[45]/.test(title)) return "rejected";
  return kind === "frame" && title.startsWith("error") ? "rejected" : "";
}

function rowOf(event: TimelineEvent): HTMLElement {
  const { at, lane, to, kind, title } = event;
  const [from, goal] = [lanes.indexOf(lane), lanes.indexOf(to ?? lane)];
  const arrow = make("i", { "data-lane": lane, "data-way": from === goal ? "stay" : from < goal ? "right" : "left" });
  arrow.style.gridColumn = `${Math.min(from, goal) + 1} / ${Math.max(from, goal) + 2}`;
  arrow.style.setProperty("--lanes", String(Math.abs(from - goal) + 1));
  const decision = decisionOf(event);
  const button = make(
    "button",
    { type: "button", tabindex: "-1" },
    make("time", {}, clock(at)),
    make("span", { class: "way" }, arrow),
    make("span", { class: "kind" }, make("span", { class: "route" }, to ? `${lane} to ${to}: ` : `${lane}: `), kind),
    make("span", { class: "title" }, ...(decision ? [make("strong", { "data-verdict": decision }, decision), " "] : []), title),
  );
  return make("li", { "data-kind": kind }, button);
}
