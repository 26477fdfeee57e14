import { createHash } from "node:crypto";
import { Emitter } from "../emitter.js";
import { TelapiError } from "../errors.js";
import { type ChannelMessage, type DurableType, fieldOf, type MessageType, type Payload, type Payloads, uuid } from "../messages.js";
import type { Client } from "./client.js";
import { Queue } from "./queue.js";
import type { AwaitOptions, ChannelInfo, Claimed, Entry, OpenWorkItem, Resumed, Trace, WorkItem } from "./types.js";

/** A channel that the runtime has claimed. Iterate over it to get its entries, each once and in order. */
export class Channel implements AsyncIterable<Entry> {
  readonly id: string;
  /** The session, endpoint, profile and so on. */
  readonly info: Readonly<ChannelInfo>;
  /** The work items whose results could still arrive when the channel was claimed or resumed. */
  workItems: OpenWorkItem[];
  /** @internal Number of unanswered requests. */
  requests = 0;
  /** @internal Number of the entry `channel_ended`, once it was pushed. */
  endNumber = Infinity;
  /** @internal Why the channel no longer belongs to the runtime. */
  closed: TelapiError | undefined;
  /** @internal The secret with which the channel is resumed. */
  readonly claim: string;
  /** @internal */
  readonly whenClosed = new Promise<void>((resolve) => (this.resolveClosed = resolve));

  private readonly entries = new Queue<Entry>();
  private readonly events = new Emitter<{ audio: (payload: Payload, message: ChannelMessage) => void }>();
  private readonly uncommitted = new Set<string>(); // positions; the service pushes only as many as its limit
  private newest: number; // number of the newest entry in the queue or handed out
  private received = ""; // its position, if it came from the queue
  private lostAt: number;
  declare private resolveClosed: () => void;

  /** @internal */
  constructor(private readonly client: Client, claimed: Claimed) {
    const { channel, claim, position, workItems = [], lostAt = 0, ...info } = claimed;
    this.id = channel;
    this.claim = claim;
    this.info = info;
    this.workItems = workItems;
    this.lostAt = lostAt;
    this.newest = entryNumber(position);
  }

  /** Yields the entries. Ends after `channel_ended` and after `release`. Throws CLAIM_LOST if another runtime has the channel. */
  async *[Symbol.asyncIterator](): AsyncGenerator<Entry, void, void> {
    for (let entry = await this.entries.next(); entry; entry = await this.entries.next()) {
      yield entry;
      if (entry.kind !== "channel_ended") continue;
      await this.commit(entry);
      if (this.endNumber < Infinity) return; // the service has not lost the end meanwhile
    }
  }

  /**
   * Marks all entries up to this one as handled. A runtime that claims the channel later continues after it. It does not wait
   * for the service, except for `channel_ended`.
   */
  commit({ position }: Pick<Entry, "position">): Promise<void> {
    if (!this.uncommitted.has(position)) return Promise.resolve(); // committed, or from before a loss
    const number = entryNumber(position);
    const committed = this.request("commit", { position }, number);
    return number >= this.endNumber || this.closed ? committed : Promise.resolve();
  }

  /**
   * Sends a message to the browser. Resolves with its ID when the service has stored it: the browser will receive it once
   * and in order. A `messageId` from `idFor` keeps a message from being sent twice if its entry is handled again.
   */
  send<Type extends DurableType>(type: Type, payload: Payloads[Type], { messageId = uuid(), trace }: { messageId?: string; trace?: Trace } = {}): Promise<string> {
    return this.request("send", { messages: [this.message(type, payload, messageId, trace)] }, 0, () => messageId);
  }

  /**
   * Returns an ID for a message or work item that an entry causes. It is the same if the entry is handled again, for example
   * by another runtime after a crash. `name` tells several of one entry apart.
   */
  idFor({ position, at }: Pick<Entry, "position" | "at">, name = ""): string {
    const hash = createHash("sha1").update(`${this.id} ${position || at} ${name}`).digest("hex");
    return hash.replace(/^(.{8})(.{4}).(.{3}).(.{3})(.{12}).*/, "$1-$2-5$3-8$4-$5");
  }

  /** Sends audio immediately or not at all. Returns false if it was not sent: there is no connection, or it is too slow. */
  audio(payload: Payload): boolean {
    return !this.closed && this.client.sendAudio(this, this.message("audio", payload, uuid()));
  }

  /** Adds a listener for the browser's audio and returns a function that removes it. Audio is not stored: it is lost without a listener. */
  on(name: "audio", listener: (payload: Payload, message: ChannelMessage) => void): () => void {
    return this.events.on(name, listener);
  }

  /** Registers a work item. Its result arrives as an entry, or `timeout` does. */
  await({ workItemId = uuid(), ...options }: AwaitOptions = {}): Promise<WorkItem> {
    return this.request("await", { workItemId, ...options }, 0, (item) => item as WorkItem);
  }

  /** Cancels a work item: no result of it will arrive any more. */
  cancel({ workItemId }: Pick<WorkItem, "workItemId">): Promise<void> {
    return this.request("cancel", { workItemId });
  }

  /** Ends the channel for all participants. The entry `channel_ended` follows. */
  end(reason?: string): Promise<void> {
    return this.request("end", { reason });
  }

  /** Gives the channel back. It is offered to another runtime, which continues after the last committed entry. */
  release(): Promise<void> {
    return this.closed ? Promise.resolve() : this.request("release", {});
  }

  /** @internal The channel's part of hello. */
  resume(): object {
    return { channel: this.id, claim: this.claim, ...(this.received ? { received: this.received } : {}) };
  }

  /** @internal The channel goes on, on another connection. */
  resumed({ workItems = [], lostAt = 0 }: Resumed): void {
    this.workItems = workItems;
    this.lost(lostAt);
  }

  /** @internal The service pushed an entry. It repeats those that are not committed after a reconnect. */
  push(position: string, entry: Entry, workItem?: WorkItem): void {
    const number = entryNumber(position);
    if (!number || !entry?.kind) throw new Error("The service sent a malformed entry.");
    if (number <= this.newest) return;
    this.newest = number;
    this.received = position;
    if (entry.kind === "channel_ended") this.endNumber = number;
    this.uncommitted.add(position);
    this.entries.push({ ...entry, position, ...(workItem && { workItem }) });
  }

  /** @internal The service lost data of the channel, unless that is known, and goes on after the committed entry that it still has. */
  lost(at: number): void {
    if (at === this.lostAt) return;
    this.lostAt = at;
    this.client.dropCommits(this);
    this.entries.clear();
    this.uncommitted.clear();
    this.newest = 0;
    this.received = "";
    this.endNumber = Infinity;
    this.entries.push({ kind: "lost", position: "", channelId: this.id, at });
  }

  /** @internal All entries up to a number are committed. */
  committed(number: number): void {
    for (const position of this.uncommitted) if (entryNumber(position) <= number) this.uncommitted.delete(position);
    if (number >= this.endNumber) this.client.remove(this);
  }

  /** @internal */
  receiveAudio(message: ChannelMessage): void {
    this.events.emit("audio", message.audio ?? {}, message);
  }

  /** @internal The channel no longer belongs to the runtime. */
  close(error?: TelapiError): void {
    this.closed = error ?? new TelapiError("CONVERSATION_ENDED", "The channel has ended or was released.");
    if (!error && this.endNumber < Infinity) this.uncommitted.clear(); // with the end
    this.entries.clear();
    this.entries.end(error);
    this.events.clear();
    this.resolveClosed();
  }

  private request<Result = void>(op: string, members: object, number = 0, receive?: (reply: object) => Result): Promise<Result> {
    return this.client.request(op, members, receive, this, number);
  }

  private message(type: MessageType, payload: Payload, messageId: string, trace?: Trace): object {
    return { type, sessionId: this.id, messageId, timestamp: Date.now(), direction: "to_browser", trace, [fieldOf(type)]: payload };
  }
}

/** Returns the number of the entry at a position. Entries of a channel are numbered from 1 on. */
export function entryNumber(position = ""): number {
  const number = Number(position.split("-")[0]);
  if (!Number.isSafeInteger(number)) throw new Error(`The position "${position}" is invalid.`);
  return number;
}
