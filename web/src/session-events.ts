import type { Frame } from "@telapi/sdk";
import type { Exchange, RequestObserver, TimelineEvent } from "./api.js";
import { byId } from "./dom.js";
import { redact } from "./redact.js";
import { withParts } from "./streamed.js";

/** The source of this page's own events. */
export const page = "page";

/** Turns frames, requests and events of the feed into events of the timeline, with their causes. */
export abstract class SessionEvents implements RequestObserver {
  private smallestOffset = -Infinity; // see clockOffset
  private seq = 0; // of this page's newest event
  private issued = false; // this page created the session, so that it knows all connections
  private connections = { attempt: 0, connected: 0, ready: 0 }; // numbers of the newest ones
  private sources = new Set<string>(); // of the feed
  private sent = new Set<string>(); // IDs of frames that this page has sent

  protected abstract add(event: TimelineEvent): void;
  protected abstract addSampledAudio(event: TimelineEvent): void;

  /** The offset of the service's clock in milliseconds, estimated from its fastest frame. */
  protected get clockOffset(): number {
    return Number.isFinite(this.smallestOffset) ? this.smallestOffset : 0;
  }

  /** Forgets the connections and frames of the previous session. */
  protected resetCauses(): void {
    this.issued = false;
    this.connections = { attempt: 0, connected: 0, ready: 0 };
    this.sources.clear();
    this.sent.clear();
  }

  /** Continues the numbers of the page's own events after a reload. */
  protected continueAfter(events: TimelineEvent[]): void {
    const count = (matches: (event: TimelineEvent) => boolean) => events.filter(matches).length;
    this.seq = Math.max(this.seq, ...events.map(({ seq }) => seq ?? 0));
    this.issued = events.some(({ ids }) => ids?.includes("session"));
    this.connections.attempt += count(({ ids }) => !!ids?.some((id) => id.startsWith("attempt:")));
    this.connections.ready += count(({ title }) => title === "status: ready");
  }

  /** Adds an event of the feed. A frame of the feed becomes the hop between service and runtime; fromConnection adds the other hop. */
  fromFeed(event: TimelineEvent): void {
    const { kind, title, lane, source } = event;
    const after = [...(event.after ?? [])];
    const ids = [...(event.ids ?? [])];
    if (source && !this.sources.has(source)) {
      this.sources.add(source);
      after.push("session");
    }
    if (kind === "session" && title === "browser connected") {
      ids.push(`connected:${++this.connections.connected}`);
      if (this.issued) after.push(`attempt:${this.connections.connected}`);
    }
    const caused = { ...event, ...(ids.length ? { ids } : {}), ...(after.length ? { after } : {}) };
    if (kind !== "frame") return this.add(withParts(caused));
    if (title.startsWith("audio")) return this.addSampledAudio(caused);
    this.add({ ...withParts(caused), kind: kindOf(title), ...(lane === "browser" ? { lane: "service" } : { to: "service" }) });
  }

  /** Adds a frame between this page and the service. */
  fromConnection({ direction, message, duplicate }: Frame): void {
    const { type, messageId, streamId, timestamp, status, error } = message;
    if (direction === "to_browser" && !streamId) this.smallestOffset = Math.max(this.smallestOffset, timestamp - Date.now());
    const payload = message.chat ?? status ?? message.control ?? message.action ?? message.browserAction ?? error ?? {};
    const summary = [payload.text, payload.event, payload.command, payload.name, payload.type, payload.code].find((part) => typeof part === "string");
    const sent = direction === "to_ari";
    const first = sent && !this.sent.has(messageId);
    if (sent && type !== "audio") this.sent.add(messageId);
    const after = sent ? [] : [`message:${messageId}`, ...(status?.event === "ack" ? [`stored:${String(status.messageId)}`] : [])];
    if (!sent && status?.event === "ready") after.push(`connected:${++this.connections.ready}`);
    const event = this.ownEvent({
      lane: sent ? "browser" : "service",
      to: sent ? "service" : "browser",
      kind: kindOf(type + (summary ? `: ${String(summary)}` : "")),
      title: type + (summary ? `: ${String(summary)}` : "") + (duplicate ? " (duplicate, dropped)" : ""),
      ...(first ? { ids: [`frame:${messageId}`] } : {}), // the runtime stream has it once, however often it is sent
      after,
      data: message,
    });
    this.add(duplicate ? event : withParts(event));
  }

  requested(http: Exchange, body: unknown): void {
    const headers = { ...http.headers, "X-API-Key": "$API_KEY" };
    const ids = http.method === "DELETE" && http.url.includes("/api/") ? ["ending"] : [];
    this.addOwn({ ids, lane: "browser", to: "service", kind: "http", title: `${http.method} ${new URL(http.url).pathname}`, http: { ...http, headers }, data: redact(body) });
  }

  answered(http: Exchange, body: unknown, ms: number): void {
    const issued = http.status === 201 && http.url.endsWith("/sessions/token");
    if (issued) this.issued = true;
    this.addOwn({ lane: "service", to: "browser", kind: "http", title: String(http.status), http, ms, data: redact(body), ...(issued ? { ids: ["session"] } : {}) });
  }

  /** Adds an event of the page itself. state is the session's, if it has changed. */
  note(title: string, data?: unknown, state?: string): void {
    const ids = state === "connecting" && ++this.connections.attempt ? [`attempt:${this.connections.attempt}`] : [];
    this.addOwn({ lane: "browser", kind: "session", title, data, ids, after: state === "ended" ? ["ended"] : [] });
  }

  private addOwn(event: Omit<TimelineEvent, "at" | "sessionId">): void {
    this.add(this.ownEvent(event));
  }

  private ownEvent(event: Omit<TimelineEvent, "at" | "sessionId">): TimelineEvent {
    return { at: Date.now(), sessionId: byId("session").textContent ?? "", source: page, seq: ++this.seq, ...event };
  }
}

/** The kind of a frame, by its title. */
function kindOf(title: string): string {
  if (title === "audio" || /^p[io]ng$/.test(title)) return title === "audio" ? title : "ping";
  if (title === "status: ack") return "ack";
  return title === "control: webrtc_candidate" ? "candidate" : "frame";
}
