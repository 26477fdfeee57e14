import type { TimelineEvent } from "./api.js";
import { byId, make, placeBelow, timeOfDay } from "./dom.js";
import type { Trace } from "./export.js";
import { Inspector } from "./inspector.js";
import { showTab } from "./layout.js";
import { orderByCause } from "./order.js";
import { showRecordings } from "./player.js";
import { importRecording } from "./recorder.js";
import { page, SessionEvents } from "./session-events.js";
import { addPart } from "./streamed.js";
import { lanes, renderRow, setBadge } from "./timeline-row.js";
import { Waterfall } from "./waterfall.js";

const kinds = ["frame", "entry", "callback", "command", "denied", "timer", "speech", "http", "session", "audio", "ack", "candidate", "ping"];
/** Kinds that are hidden until the user selects them: they say little, and there are many. */
const noise = ["ack", "candidate", "ping"];
const maxRows = 1_000;
/** Audio frames within this time of the last one share its row. */
const sameUtteranceMs = 2_000;
/** Events are collected for this time before they are put in order, because a cause may arrive after its effect. */
const settleMs = 50;

/** An event of the timeline. A mark has no row. */
export interface Entry {
  event: TimelineEvent;
  arrivedAt: number; // by this page's clock
  time: number; // by the service's clock, as far as it is known
  item?: HTMLElement;
  searchText: string; // lower case
  frames: number; // audio frames in this row
}

/** The timeline panel: one row per event, ordered by cause. */
export class Timeline extends SessionEvents {
  private readonly list = byId("timeline");
  private readonly pause = byId<HTMLButtonElement>("pause");
  private readonly lane = byId<HTMLSelectElement>("lane");
  private readonly kinds: HTMLInputElement[];
  private readonly search = byId<HTMLInputElement>("search");
  private readonly newer = byId<HTMLButtonElement>("newer");
  private readonly banner = byId("trace");
  private readonly inspector = new Inspector(this.list);
  private readonly waterfall = new Waterfall((entry) => {
    showTab("timeline");
    this.inspect(entry);
  });
  private entries: Entry[] = [];
  private pausedEvents: Entry[] = []; // received while paused, or while a trace is open
  private live: Entry[] | undefined; // the session's rows while a trace is open
  private trace: Trace | undefined;
  unclaimed = false; // no runtime receives what is sent to it
  private following = true; // the newest rows are visible
  private endTop = 0; // where scrollToEnd has scrolled to
  private unseen = 0; // new rows below the visible ones
  private settling: ReturnType<typeof setTimeout> | undefined;
  private pressed = false; // a row is pressed, and must not move away from the mouse

  constructor() {
    super();
    this.lane.append(...lanes.map((lane) => make("option", {}, lane)));
    this.kinds = kinds.map((kind) => make("input", { type: "checkbox", value: kind, ...(noise.includes(kind) ? {} : { checked: "" }) }));
    byId("kinds").append(...this.kinds.map((kind) => make("label", {}, kind, kind.value)));
    byId("kinds").onchange = () => this.applyFilter();
    byId("all-kinds").onclick = () => this.selectKinds(() => true);
    byId("no-kinds").onclick = () => this.selectKinds(() => false);
    placeBelow(byId("kinds-menu"), byId("kinds-open"));
    this.lane.onchange = this.search.oninput = () => this.applyFilter();
    byId("clear").onclick = () => this.clear();
    byId("unfilter").onclick = () => {
      this.lane.value = this.search.value = "";
      this.selectKinds((kind) => !noise.includes(kind));
      this.search.focus();
    };
    this.newer.onclick = () => {
      this.list.focus();
      this.scrollToEnd();
    };
    this.list.onscroll = () => {
      this.following = this.isAtEnd();
      if (this.following) this.showUnseen(0);
    };
    new ResizeObserver(() => this.following && !this.inspector.isOpen && this.scrollToEnd()).observe(this.list);
    this.pause.onclick = () => {
      this.arrange();
      this.pause.ariaPressed = String(!this.paused);
      if (!this.paused && !this.trace) this.entries.push(...this.pausedEvents.splice(0));
      this.arrange();
    };
    this.list.onkeydown = (event) => this.moveFocus(event);
    this.list.onpointerdown = ({ isPrimary, button }) => (this.pressed ||= isPrimary && button === 0);
    for (const name of ["pointerup", "pointercancel", "contextmenu", "dragend", "blur"]) addEventListener(name, () => this.release());
    addEventListener("pointermove", ({ buttons }) => buttons || this.release()); // it was released elsewhere
    this.arrange();
    this.applyFilter();
  }

  private get paused(): boolean {
    return this.pause.ariaPressed === "true";
  }

  /** Starts the timeline of a new session. */
  start(): void {
    this.unclaimed = false;
    this.clear();
    this.resetCauses();
  }

  clear(): void {
    this.closeTrace();
    this.pausedEvents = [];
    this.replace([]);
  }

  /** Shows whether messages wait for a runtime. */
  showUnclaimed(unclaimed: boolean): void {
    this.unclaimed = unclaimed;
    this.arrange();
  }

  /** What the timeline shows: a trace or the session. */
  content(): { sessionId: string; clockOffset: number; entries: readonly Entry[]; isTrace: boolean } {
    this.arrange();
    return { sessionId: this.trace?.sessionId ?? byId("session").textContent ?? "", clockOffset: this.offset, entries: this.entries, isTrace: !!this.trace };
  }

  /** Shows a trace instead of the session, whose events are kept until closeTrace. */
  openTrace(trace: Trace): void {
    this.live ??= this.entries;
    this.trace = trace;
    byId("trace-title").textContent = `Trace of session ${trace.sessionId || "unknown"}, exported at ${trace.exportedAt}.`;
    this.replace(trace.events.map((event) => newEntry(event, Infinity)));
  }

  /** Selects the event with this source and number, if it is there. */
  reveal(source: string, seq: number): void {
    this.arrange();
    const entry = this.entries.find(({ event }) => event.source === source && event.seq === seq);
    if (entry) this.inspect(entry);
  }

  /** The page's own events, for a reload. */
  ownEvents(): TimelineEvent[] {
    return (this.live ?? this.entries).map(({ event }) => event).filter(({ source, kind }) => source === page && kind !== "audio");
  }

  /** Shows the page's own events from before a reload. */
  restore(events: TimelineEvent[]): void {
    this.continueAfter(events);
    this.entries.push(...events.map((event) => newEntry(event, event.at)));
    this.arrange();
  }

  /** Shows the session again. */
  closeTrace(): void {
    if (!this.trace) return;
    const entries = [...this.live!, ...(this.paused ? [] : this.pausedEvents.splice(0))];
    this.trace = this.live = undefined;
    this.replace(entries);
  }

  private replace(entries: Entry[]): void {
    this.banner.hidden = !this.trace;
    showRecordings(byId("trace-recordings"), (this.trace?.recordings ?? []).map(importRecording));
    this.entries = entries;
    this.list.replaceChildren();
    this.inspector.close();
    this.following = true;
    this.arrange();
  }

  /** The offset of the service's clock in milliseconds. */
  private get offset(): number {
    return this.trace?.clockOffsetMs ?? this.clockOffset;
  }

  protected add(event: TimelineEvent): void {
    if (event.kind === "heartbeat" || event.kind === "waiting") return;
    if (event.kind === "audio" && this.mergeIntoRow(event)) return;
    this.waterfall.light(event);
    this.settling ??= setTimeout(() => this.arrange(), settleMs);
    if (event.parts && this.addToAnswer(event, event.parts.workItemId)) return;
    const entry = newEntry(event, Date.now());
    if (!this.paused && !this.trace) this.entries.push(entry);
    else if (this.pausedEvents.push(entry) > maxRows) this.pausedEvents.shift();
  }

  /** Adds a part of a streamed answer to the row of the earlier ones on the same hop. Returns false if there is none. */
  private addToAnswer(event: TimelineEvent, workItemId: string): boolean {
    const row = [...(this.live ?? this.entries), ...this.pausedEvents].findLast(({ event: { parts, source, kind } }) => parts?.workItemId === workItemId && source === event.source && kind === event.kind);
    if (!row) return false;
    row.event = addPart(row.event, event);
    row.searchText = searchTextOf(row.event);
    if (row.item) {
      row.item.querySelector(".title")!.lastChild!.textContent = row.event.title; // after a badge
      row.item.hidden = !this.matches(row);
    }
    return true;
  }

  /** Adds a sampled audio frame of the feed. It passed the service before the browser received it, and after the browser sent it. */
  protected addSampledAudio(event: TimelineEvent): void {
    const toBrowser = event.lane === "runtime";
    const row = this.lastAudio(({ lane, source }) => source === page && lane === (toBrowser ? "service" : "browser"));
    const sampled: TimelineEvent = { ...event, kind: "audio", title: "audio (sampled)", ...(toBrowser ? { to: "service" } : { lane: "service" }) };
    if (row && toBrowser) {
      sampled.ids = [`audio:${row.event.seq}`];
      row.event.after = [...(row.event.after ?? []), ...sampled.ids];
    } else if (row) {
      row.event.ids = [`audio:${row.event.seq}`];
      sampled.after = row.event.ids;
    }
    this.add(sampled);
  }

  /** The row of the audio frames that arrive now. */
  private lastAudio(matches: (event: TimelineEvent) => boolean): Entry | undefined {
    const row = [...(this.live ?? this.entries), ...this.pausedEvents].findLast(({ event }) => event.kind === "audio" && matches(event));
    return row && Date.now() - row.arrivedAt < sameUtteranceMs ? row : undefined;
  }

  /** Adds an audio frame to the row of the previous one in the same lane. Returns false if there is none. */
  private mergeIntoRow(event: TimelineEvent): boolean {
    const row = this.lastAudio(({ lane, to }) => lane === event.lane && to === event.to);
    if (!row) return false;
    row.arrivedAt = Date.now();
    row.event = { ...row.event, data: event.data, title: event.title === "audio" ? `audio, ${++row.frames} frames` : event.title };
    if (row.item) row.item.querySelector(".title")!.textContent = row.event.title;
    return true;
  }

  /** Puts the rows in order. */
  private arrange(): void {
    clearTimeout(this.settling);
    this.settling = undefined;
    if (this.list.scrollTop < this.endTop && !this.isAtEnd()) this.following = false; // the reader has scrolled up, and onscroll follows
    const { offset } = this;
    for (const entry of this.entries) entry.time = Math.min(entry.event.at + (entry.event.source === page ? offset : 0), entry.arrivedAt + offset);
    this.entries = orderByCause(this.entries);
    if (this.pressed) return; // until release
    this.dropOldest();
    const parked = new Set(this.entries.flatMap(({ event }) => event.ids ?? []).filter((id) => id.startsWith("parked:")));
    // A runtime that sends something has received what came before.
    const received = this.unclaimed && !this.trace ? this.entries.findLastIndex(({ event }) => event.lane === "runtime") : Infinity;
    let next = this.list.firstElementChild;
    let added = 0;
    for (const [index, entry] of this.entries.entries()) {
      if (entry.event.kind === "mark") continue;
      if (!entry.item) {
        this.createRow(entry);
        if (!entry.item!.hidden) added++;
      }
      const item = entry.item!;
      if (entry.event.kind === "entry" && entry.event.after?.some((id) => parked.has(id))) setBadge(item, "released");
      item.toggleAttribute("data-waiting", entry.event.to === "runtime" && index > received);
      showTime(item, entry.time);
      if (item === next) next = next.nextElementSibling;
      else this.list.insertBefore(item, next);
    }
    this.waterfall.show(this.entries); // changes the height of the list
    if (this.following) this.scrollToEnd();
    this.showUnseen(this.following ? 0 : this.unseen + added);
    this.updateCount();
  }

  /** Arranges the rows again, after the click on one of them. */
  private release(): void {
    if (!this.pressed) return;
    this.pressed = false;
    this.settling ??= setTimeout(() => this.arrange(), settleMs);
  }

  private createRow(entry: Entry): void {
    const item = (entry.item = renderRow(entry.event));
    item.querySelector("button")!.onclick = () => this.inspect(entry);
    item.hidden = !this.matches(entry);
  }

  private dropOldest(): void {
    let excess = this.entries.filter(({ event }) => event.kind !== "mark").length - maxRows;
    while (excess > 0) {
      const { event, item } = this.entries.shift()!;
      if (event.kind !== "mark") excess--;
      item?.remove();
    }
  }

  /** Selects the row of an entry. The list stays there while new rows arrive. */
  private inspect({ event, item }: Entry): void {
    if (!item) return;
    item.hidden = false;
    this.following = false;
    this.inspector.open(event, item);
  }

  private isAtEnd(): boolean {
    return this.list.scrollHeight - this.list.scrollTop - this.list.clientHeight < 40;
  }

  private scrollToEnd(): void {
    this.following = true;
    this.list.scrollTop = this.list.scrollHeight;
    this.endTop = this.list.scrollTop;
  }

  /** Tells a reader who has scrolled up that there are new rows. */
  private showUnseen(count: number): void {
    this.unseen = count;
    this.newer.hidden = !count;
    byId("newer-count").textContent = count ? `${count} new ${count === 1 ? "event" : "events"}` : "";
  }

  private matches({ event, searchText }: Entry): boolean {
    const lane = this.lane.value;
    return (!lane || event.lane === lane || event.to === lane) && this.kinds.every(({ value, checked }) => checked || value !== event.kind) && searchText.includes(this.search.value.toLowerCase());
  }

  private selectKinds(selected: (kind: string) => boolean): void {
    for (const kind of this.kinds) kind.checked = selected(kind.value);
    this.applyFilter();
  }

  private applyFilter(): void {
    const hidden = this.kinds.filter(({ checked }) => !checked).length;
    byId("kinds-open").textContent = hidden ? `Kinds: ${hidden} hidden` : "Kinds: all";
    for (const entry of this.entries) if (entry.item) entry.item.hidden = !this.matches(entry);
    this.scrollToEnd();
    this.showUnseen(0);
    this.updateCount();
  }

  private updateCount(): void {
    const rows = this.entries.flatMap(({ item }) => item ?? []);
    const shown = rows.filter(({ hidden }) => !hidden).length;
    byId("count").textContent = `${shown} of ${rows.length} events` + (this.pausedEvents.length ? `, ${this.pausedEvents.length} paused` : "");
    byId("no-match").hidden = !rows.length || shown > 0;
  }

  /** Moves between rows with the arrow keys. */
  private moveFocus(event: KeyboardEvent): void {
    const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const buttons = this.entries.flatMap(({ item }) => (item && !item.hidden ? item.querySelector("button")! : []));
    const index = buttons.indexOf(document.activeElement as HTMLButtonElement);
    buttons.at(index < 0 ? -1 : Math.min(Math.max(index + step, 0), buttons.length - 1))?.focus();
  }
}

function newEntry(event: TimelineEvent, arrivedAt: number): Entry {
  return { event, arrivedAt, time: event.at, searchText: searchTextOf(event), frames: 1 };
}

function searchTextOf({ title, data }: TimelineEvent): string {
  return (title + JSON.stringify(data ?? "")).toLowerCase();
}

function showTime(item: HTMLElement, time: number): void {
  const element = item.querySelector("time")!;
  const text = timeOfDay(Math.round(time));
  if (element.textContent !== text) element.textContent = text;
}
