import { TelapiError } from "../errors.js";
import type { State } from "../events.js";
import { uuid } from "../messages.js";
import type { Channel } from "./channel.js";
import { Client } from "./client.js";
import { Queue } from "./queue.js";
import type { AcceptOptions, OpenOptions, RuntimeEvents, RuntimeOptions, SpeechReport } from "./types.js";

/** How long `Runtime.close` waits until the service has taken the channels back. */
const releaseTimeoutMs = 2_000;

/** A call runtime: it accepts sessions and handles their channels, across any number of connections. */
export class Runtime {
  private readonly client: Client;
  private closing = false;

  /** Connects in the background, and again whenever the connection is lost. */
  constructor(options: RuntimeOptions) {
    this.client = new Client(options);
  }

  /** The current state. */
  get state(): State {
    return this.client.change.state;
  }

  /** Why the connection was lost or the runtime has ended. */
  get reason(): TelapiError | undefined {
    return this.client.change.reason;
  }

  /** Adds a listener and returns a function that removes it. */
  on<Name extends keyof RuntimeEvents>(name: Name, listener: RuntimeEvents[Name]): () => void {
    return this.client.events.on(name, listener);
  }

  /**
   * Yields a channel for each session that the service assigns. While `capacity` channels are open, it asks for no more.
   * Do not wait for a channel's end in the loop. Ends after `close`; throws if the service rejects the runtime.
   */
  async *accept({ capacity = 8, ...filter }: AcceptOptions = {}): AsyncGenerator<Channel, void, void> {
    const accepted = new Queue<Channel>();
    let stopped = false;
    const acceptOneByOne = async () => {
      while (!stopped && !this.closing) {
        const channel = await this.client.claim("accept", filter);
        if (stopped || this.closing) return void channel.release();
        accepted.push(channel);
        await channel.whenClosed;
      }
    };
    for (let i = 0; i < capacity; i++) acceptOneByOne().then(() => accepted.end(), (error: TelapiError) => accepted.end(this.closing ? undefined : error));
    try {
      for (let channel = await accepted.next(); channel; channel = await accepted.next()) yield channel;
    } finally {
      stopped = true;
      for (const channel of accepted.clear()) void channel.release();
    }
  }

  /** Opens a channel without a browser, or claims it if it exists and no other runtime has it. */
  open({ channel = uuid(), ...options }: OpenOptions): Promise<Channel> {
    return this.client.claim("open", { channel, ...options });
  }

  /** Reports synthesized texts, for the usage statistics. */
  report(reports: SpeechReport[]): Promise<void> {
    return this.client.request("report", { reports: reports.map((report) => ({ id: uuid(), at: Date.now(), ...report })) });
  }

  /** Gives all channels back, so that other runtimes continue them, and disconnects. */
  async close(): Promise<void> {
    if (this.closing) return;
    this.closing = true;
    if (this.state === "connected") {
      let timer: ReturnType<typeof setTimeout>;
      const timeout = new Promise((resolve) => (timer = setTimeout(resolve, releaseTimeoutMs)));
      await Promise.race([timeout, Promise.allSettled([...this.client.channels.values()].map((channel) => channel.release()))]);
      clearTimeout(timer!);
    }
    this.client.end(new TelapiError("CLOSED", "The runtime was closed."));
  }
}
