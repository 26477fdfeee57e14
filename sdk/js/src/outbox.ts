import { TelapiError } from "./errors.js";

/** Maximum number of unacknowledged messages. */
export const MAX_UNACKNOWLEDGED = 256;

/** A message that is not acknowledged yet. */
export interface PendingMessage {
  readonly messageId: string;
  /** The whole frame; the same on every connection of a session. */
  frame(): string;
  resolve(): void;
  reject(error: TelapiError): void;
}

/**
 * The unacknowledged messages, oldest first. They are sent again, in order, on each new connection.
 *
 * The outbox sends at less than the service's rate limit. It also limits the number of frames in flight: a network that
 * stalls delivers them all at once, and they must not exceed the rate limit either.
 */
export class Outbox {
  private readonly pending: PendingMessage[] = [];
  private inFlight = 0; // the first inFlight messages were sent on this connection
  private connected = false;
  private permits = 0; // frames that may be sent now
  private refilledAt = 0;
  private timer: ReturnType<typeof setTimeout> | undefined;

  /** @param framesPerSecond the service's rate limit */
  constructor(
    private readonly transmit: (frame: string) => void,
    public framesPerSecond: number,
    public maxBytes: number,
  ) {}

  /** Queues a message. It is sent when there is a connection and the rate allows. */
  add(message: PendingMessage): void {
    if (this.pending.length >= MAX_UNACKNOWLEDGED) {
      return message.reject(new TelapiError("OUTBOX_FULL", `${MAX_UNACKNOWLEDGED} messages are not acknowledged yet. Send this one later.`));
    }
    this.pending.push(message);
    this.flush();
  }

  /** Sends all pending messages on a new connection. */
  start(): void {
    this.stop();
    this.connected = true;
    this.permits = this.framesPerSecond / 2;
    this.refilledAt = performance.now();
    this.flush();
  }

  /** Stops sending: the connection is lost. */
  stop(): void {
    this.connected = false;
    this.inFlight = 0;
    clearTimeout(this.timer);
  }

  /** Resolves a message, or rejects it if there is an error. Without an ID, it is the oldest message: the service answers in order. */
  settle(messageId: string | undefined, error?: TelapiError): void {
    const index = messageId ? this.pending.findIndex((m) => m.messageId === messageId) : Math.min(this.inFlight, 1) - 1;
    const [message] = index < 0 ? [] : this.pending.splice(index, 1);
    if (!message) return;
    if (index < this.inFlight) this.inFlight--;
    if (error) message.reject(error);
    else message.resolve();
    this.flush();
  }

  /** Rejects all pending messages. */
  fail(error: TelapiError): void {
    this.stop();
    for (const message of this.pending.splice(0)) message.reject(error);
  }

  /** Returns an error if the frame is larger than the service accepts. */
  sizeError(frame: string): TelapiError | undefined {
    const size = new TextEncoder().encode(frame).length;
    return size > this.maxBytes ? new TelapiError("MESSAGE_TOO_LARGE", `The message has ${size} bytes; ${this.maxBytes} are allowed.`) : undefined;
  }

  /** Sends as many pending messages as the limits allow, and schedules the others. */
  private flush(): void {
    clearTimeout(this.timer);
    const now = performance.now();
    const rate = 0.8 * this.framesPerSecond; // below the limit: pings count too
    this.permits = Math.min(this.framesPerSecond / 2, this.permits + ((now - this.refilledAt) * rate) / 1000);
    this.refilledAt = now;
    while (this.connected && this.inFlight < Math.min(this.pending.length, Math.max(1, this.framesPerSecond / 2))) {
      if (this.permits < 1) {
        this.timer = setTimeout(() => this.flush(), Math.ceil(((1 - this.permits) * 1000) / rate));
        return;
      }
      const next = this.pending[this.inFlight]!;
      const frame = next.frame();
      const error = this.sizeError(frame);
      if (error) {
        this.pending.splice(this.inFlight, 1);
        next.reject(error);
        continue;
      }
      this.permits--;
      this.inFlight++;
      this.transmit(frame);
    }
  }
}
