import type { WebSocketLike } from "@telapi/sdk";

/** The simulated network between this page and the service. */
export const network = {
  /** Delay of each frame, in both directions. */
  latencyMs: 0,
  /** Probability that a frame drops the connection. */
  loss: 0,
};

/** A WebSocket on the simulated network. Frames keep their order. TCP loses no single frame, so a loss drops the connection. */
export class SimulatedWebSocket implements WebSocketLike {
  onopen: WebSocketLike["onopen"] = null;
  onmessage: WebSocketLike["onmessage"] = null;
  onclose: WebSocketLike["onclose"] = null;
  onerror: WebSocketLike["onerror"] = null;
  private readonly socket: WebSocket;
  private readonly incoming = new DelayLine();
  private readonly outgoing = new DelayLine();

  constructor(url: string, protocols: string[]) {
    this.socket = new WebSocket(url, protocols);
    this.socket.onopen = (event) => this.incoming.add(() => this.onopen?.(event as never));
    this.socket.onmessage = (event) => this.transfer(this.incoming, String(event.data), () => this.onmessage?.(event as never));
    this.socket.onclose = (event) => this.incoming.add(() => this.onclose?.(event as never));
  }

  get bufferedAmount(): number {
    return this.socket.bufferedAmount;
  }

  send(frame: string): void {
    this.transfer(this.outgoing, frame, () => {
      if (this.socket.readyState === WebSocket.OPEN) this.socket.send(frame); // otherwise the browser would report an error
    });
  }

  close(code?: number, reason?: string): void {
    this.incoming.clear();
    this.outgoing.clear();
    this.socket.close(code, reason);
  }

  /** Audio drops no connection: it may be lost, and there are 50 frames a second. */
  private transfer(line: DelayLine, frame: string, deliver: () => void): void {
    if (Math.random() >= network.loss || frame.includes('"type":"audio"')) return line.add(deliver);
    this.close();
    this.socket.onclose = this.socket.onmessage = null;
    setTimeout(() => this.onclose?.({ code: 1006, reason: "The simulated network lost a frame." } as never));
  }
}

/** Delivers after a delay, in order. */
class DelayLine {
  private queue: { due: number; deliver: () => void }[] = [];
  private timer: ReturnType<typeof setTimeout> | undefined;

  add(deliver: () => void): void {
    if (!network.latencyMs && !this.queue.length) return deliver();
    this.queue.push({ due: performance.now() + network.latencyMs, deliver });
    this.schedule();
  }

  clear(): void {
    this.queue = [];
  }

  private schedule(): void {
    clearTimeout(this.timer);
    if (this.queue[0]) this.timer = setTimeout(() => this.deliver(), this.queue[0].due - performance.now());
  }

  private deliver(): void {
    while (this.queue[0] && this.queue[0].due <= performance.now()) this.queue.shift()!.deliver();
    this.schedule();
  }
}
