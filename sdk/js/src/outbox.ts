import { TelapiError } from "./errors.js";

/** How many messages may wait for their acknowledgement. */
export const MAX_UNACKNOWLEDGED = 256;

/** A message that is not acknowledged yet. */
export interface Waiting {
  readonly messageId: string;
  /** The whole frame; the same on every connection of a session. */
  frame(): string;
  resolve(): void;
  reject(error: TelapiError): void;
}

/**
 * Messages on their way, oldest first. Each connection gets all of them again, in order. It keeps below the rate
 * at which the service would close the socket, and has few enough in flight that a stalled network, which delivers them
 * all at once, does not break it either.
 */
export class Outbox {
  private readonly waiting: Waiting[] = [];
  private inFlight = 0; // how many of them this connection has been given
  private live = false;
  private permits = 0;
  private refilledAt = 0;
  private timer: ReturnType<typeof setTimeout> | undefined;

  /** @param framesPerSecond what the service allows */
  constructor(
    private readonly transmit: (frame: string) => void,
    public framesPerSecond: number,
    public maxBytes: number,
  ) {}

  /** Takes a message; it leaves once there is a connection and its turn has come. */
  add(message: Waiting): void {
    if (this.waiting.length >= MAX_UNACKNOWLEDGED) {
      return message.reject(new TelapiError("OUTBOX_FULL", `${MAX_UNACKNOWLEDGED} messages wait for their acknowledgement already. Send this one later.`));
    }
    this.waiting.push(message);
    this.flush();
  }

  /** A connection is there: everything that waits goes out on it. */
  start(): void {
    this.stop();
    this.live = true;
    this.permits = this.framesPerSecond / 2;
    this.refilledAt = performance.now();
    this.flush();
  }

  /** The connection is gone. */
  stop(): void {
    this.live = false;
    this.inFlight = 0;
    clearTimeout(this.timer);
  }

  /** The service has answered a message, or, without an id, the oldest one: answers come in order. */
  settle(messageId: string | undefined, error?: TelapiError): void {
    const at = messageId ? this.waiting.findIndex((m) => m.messageId === messageId) : Math.min(this.inFlight, 1) - 1;
    const [message] = at < 0 ? [] : this.waiting.splice(at, 1);
    if (!message) return;
    if (at < this.inFlight) this.inFlight--;
    if (error) message.reject(error);
    else message.resolve();
    this.flush();
  }

  /** Nothing will be sent any more. */
  fail(error: TelapiError): void {
    this.stop();
    for (const message of this.waiting.splice(0)) message.reject(error);
  }

  /** Why a frame would cost the session, or undefined: it may go. */
  tooLarge(frame: string): TelapiError | undefined {
    const size = new TextEncoder().encode(frame).length;
    return size > this.maxBytes ? new TelapiError("MESSAGE_TOO_LARGE", `The message has ${size} bytes; ${this.maxBytes} are allowed.`) : undefined;
  }

  private flush(): void {
    clearTimeout(this.timer);
    const now = performance.now();
    const rate = 0.8 * this.framesPerSecond;
    this.permits = Math.min(this.framesPerSecond / 2, this.permits + ((now - this.refilledAt) * rate) / 1000);
    this.refilledAt = now;
    while (this.live && this.inFlight < Math.min(this.waiting.length, Math.max(1, this.framesPerSecond / 2))) {
      if (this.permits < 1) {
        this.timer = setTimeout(() => this.flush(), Math.ceil(((1 - this.permits) * 1000) / rate));
        return;
      }
      const next = this.waiting[this.inFlight]!;
      const frame = next.frame();
      const problem = this.tooLarge(frame);
      if (problem) {
        this.waiting.splice(this.inFlight, 1);
        next.reject(problem);
        continue;
      }
      this.permits--;
      this.inFlight++;
      this.transmit(frame);
    }
  }
}
