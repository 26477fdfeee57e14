import type { Frame } from "@telapi/sdk";
import type { TimelineEvent } from "./api.js";

/** What became of the messages of a session. */
export interface Counts {
  sent: number;
  acknowledged: number;
  received: number;
  lost: number;
  duplicates: number;
}

/**
 * Counts the messages of a session by ID. It compares what this page sent and received with what the service has stored, as the
 * event feed reports it. Both directions keep the order, so a message is lost if it is missing and a later one is there.
 */
export class Ledger {
  private readonly sent = new Set<string>(); // by this page
  private readonly acknowledged = new Set<string>();
  private readonly stored = new Map<string, number>(); // on the runtime stream, and how often
  private readonly published = new Set<string>(); // by the runtime
  private readonly received = new Map<string, number>(); // by this page, and how often

  /** Takes whether the page goes on with a session: then another page has received its earlier messages. */
  constructor(private readonly resumed: boolean) {}

  /** Counts a frame on the connection. Audio and pings may be lost. */
  addFrame({ direction, message: { type, messageId, streamId, status } }: Pick<Frame, "direction" | "message">): void {
    if (direction === "to_browser" && streamId) increment(this.received, messageId);
    else if (direction === "to_browser" && status?.event === "ack") this.acknowledged.add(String(status.messageId));
    else if (direction === "to_ari" && !/^(audio|p[io]ng)$/.test(type)) this.sent.add(messageId);
  }

  /** Counts an event of the feed. */
  addEvent({ source, ids = [] }: Pick<TimelineEvent, "source" | "ids">): void {
    for (const [kind, messageId] of ids.map((id) => [id.slice(0, id.indexOf(":")), id.slice(id.indexOf(":") + 1)] as const)) {
      if (source === "entries" && kind === "stored") increment(this.stored, messageId);
      if (source === "messages" && kind === "message") this.published.add(messageId);
    }
  }

  get counts(): Counts {
    const fromBrowser = missing([...this.sent], this.stored, false).filter((id) => this.acknowledged.has(id));
    const toBrowser = missing([...this.published], this.received, this.resumed);
    return {
      sent: this.sent.size,
      acknowledged: [...this.sent].filter((id) => this.acknowledged.has(id)).length,
      received: this.received.size,
      lost: fromBrowser.length + toBrowser.length,
      duplicates: repeats(this.stored) + repeats(this.received),
    };
  }
}

function increment(counts: Map<string, number>, id: string): void {
  counts.set(id, (counts.get(id) ?? 0) + 1);
}

/** How many messages arrived after they had arrived before. */
function repeats(counts: Map<string, number>): number {
  return [...counts.values()].reduce((sum, count) => sum + count - 1, 0);
}

/** The messages that have not arrived, up to the last that has. With `fromFirst`, those before the first that has do not count. */
function missing(ids: string[], arrived: Map<string, number>, fromFirst: boolean): string[] {
  const has = (id: string) => arrived.has(id);
  const first = fromFirst ? ids.findIndex(has) : 0;
  return ids.slice(Math.max(0, first), ids.findLastIndex(has) + 1).filter((id) => !has(id));
}
