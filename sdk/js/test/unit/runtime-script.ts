import { once } from "node:events";
import { createServer, type IncomingMessage, type Server } from "node:http";
import type { AddressInfo, Socket } from "node:net";
import { afterEach, beforeEach, expect, vi } from "vitest";
import { type WebSocket, WebSocketServer } from "ws";
import { Runtime, type Channel, type Entry, type RuntimeOptions } from "../../src/runtime.js";

/** A frame of either side. */
export type Frame = Record<string, any>;

/** Waits for a condition without waiting for timers, which are fake. */
export async function until<Value>(condition: () => Value | undefined | false, what = String(condition)): Promise<Value> {
  for (const start = performance.now(); performance.now() - start < 60_000; ) {
    const value = condition();
    if (value) return value;
    await new Promise((resolve) => setImmediate(resolve));
  }
  throw new Error(`timed out: ${what}`);
}

/** Lets everything that is under way on the sockets arrive: a frame to the runtime and back. */
export async function settled(connection: ScriptedConnection): Promise<void> {
  connection.socket.ping();
  await once(connection.socket, "pong");
}

/** A connection of a runtime, from the side of the service. */
export class ScriptedConnection {
  readonly frames: Frame[] = [];
  closedWith: number | undefined;

  constructor(readonly socket: WebSocket, readonly request: IncomingMessage) {
    socket.on("message", (data) => this.frames.push(JSON.parse(String(data)) as Frame));
    socket.on("close", (code) => (this.closedWith = code));
  }

  /** The runtime's requests of an operation. */
  all(op: string): Frame[] {
    return this.frames.filter((frame) => frame.op === op);
  }

  /** Waits for the request number `index` of an operation. */
  receive(op: string, index = 0): Promise<Frame> {
    return until(() => this.all(op)[index], `request ${op} ${index} on a connection with ${JSON.stringify(this.frames)}`);
  }

  send(frame: unknown): void {
    this.socket.send(typeof frame === "string" ? frame : JSON.stringify(frame));
  }

  /** Waits for a request and answers it. */
  async answer(op: string, ok: object = {}, index = 0): Promise<Frame> {
    const request = await this.receive(op, index);
    this.send({ id: request.id, ok });
    return request;
  }

  async reject(op: string, error: object, index = 0): Promise<void> {
    this.send({ id: (await this.receive(op, index)).id, error });
  }

  /** Answers hello. */
  welcome(resumed: object[] = [], overrides: object = {}): Promise<Frame> {
    return this.answer("hello", { instance: "i1", resumed, pingIntervalMs: 10_000, limits: { frameBytes: 1 << 20 }, ...overrides });
  }

  /** Pushes chat entries with these numbers to a channel. */
  entries(channel: string, ...numbers: number[]): void {
    for (const number of numbers) this.entry(channel, number, { kind: "frame", message: { type: "chat", chat: { text: `text ${number}` } } });
  }

  entry(channel: string, number: number, entry: object): void {
    this.send({ event: "entry", channel, position: `${number}-1000`, entry: { channelId: channel, at: 1, ...entry } });
  }

  /** Waits until the runtime has closed the connection. */
  closed(): Promise<number> {
    return until(() => this.closedWith);
  }
}

/** A service whose answers the test scripts. */
export class ScriptedService {
  readonly connections: ScriptedConnection[] = [];
  /** Answers the next handshakes, instead of opening a WebSocket. */
  rejections: { status: number; body: string; headers?: Record<string, string> }[] = [];
  private readonly server: Server;
  private readonly sockets = new Set<Socket>();

  private constructor() {
    const sockets = new WebSocketServer({ noServer: true, autoPong: true });
    this.server = createServer();
    this.server.on("connection", (socket: Socket) => {
      this.sockets.add(socket);
      socket.on("close", () => this.sockets.delete(socket));
    });
    this.server.on("upgrade", (request: IncomingMessage, socket: Socket, head: Buffer) => {
      const rejection = this.rejections.shift();
      if (rejection) {
        const headers = Object.entries({ Connection: "close", ...rejection.headers }).map(([name, value]) => `${name}: ${value}\r\n`);
        return void socket.end(`HTTP/1.1 ${rejection.status} Rejected\r\n${headers.join("")}\r\n${rejection.body}`);
      }
      sockets.handleUpgrade(request, socket, head, (webSocket) => this.connections.push(new ScriptedConnection(webSocket, request)));
    });
  }

  static async start(): Promise<ScriptedService> {
    const service = new ScriptedService();
    service.server.listen(0, "127.0.0.1");
    await once(service.server, "listening");
    return service;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.server.address() as AddressInfo).port}`;
  }

  /** Waits for the connection number `index`. */
  connection(index: number): Promise<ScriptedConnection> {
    return until(() => this.connections[index], `connection ${index}`);
  }

  async stop(): Promise<void> {
    this.server.close();
    await until(() => !this.sockets.size, "all sockets are closed");
  }
}

export interface Script {
  service: ScriptedService;
  runtime: Runtime;
  /** Starts another runtime. It is closed after the test. */
  start(options?: Partial<RuntimeOptions>): Runtime;
  /** Runs the timer of the next attempt to connect. */
  reconnect(): Promise<ScriptedConnection>;
}

/** Gives every test of the file a service and a runtime, with fake timers and the longest random delays. A test fails if timers remain. */
export function useScript(): Script {
  const script = {} as Script;
  let runtimes: Runtime[];
  beforeEach(async () => {
    vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] }).spyOn(Math, "random").mockReturnValue(0.999999);
    runtimes = [];
    script.service = await ScriptedService.start();
    script.start = (options) => {
      const runtime = new Runtime({ url: script.service.url, key: "tk_1", name: "test", ...options });
      runtimes.push(runtime);
      return runtime;
    };
    script.runtime = script.start();
    script.reconnect = async () => {
      const { length } = script.service.connections;
      await until(() => script.runtime.state === "waiting");
      vi.runOnlyPendingTimers();
      return script.service.connection(length);
    };
  });
  afterEach(async () => {
    const closing = Promise.all(runtimes.map((runtime) => runtime.close()));
    await Promise.resolve();
    for (const runtime of runtimes) if (runtime.state === "connected") vi.runOnlyPendingTimers(); // the script does not answer release
    await closing;
    await script.service.stop();
    expect(vi.getTimerCount()).toBe(0);
    vi.restoreAllMocks();
    vi.useRealTimers();
  });
  return script;
}

/** Connects the script's runtime and lets it accept a channel. */
export async function accept(script: Script, claimed: object = {}, capacity = 1): Promise<{ connection: ScriptedConnection; channel: Channel; accepting: AsyncGenerator<Channel> }> {
  const connection = await script.service.connection(0);
  await connection.welcome();
  const accepting = script.runtime.accept({ capacity });
  const first = accepting.next();
  await connection.answer("accept", { channel: "c1", claim: "secret", team: "t", endpoint: "e", position: "", ...claimed });
  return { connection, channel: (await first).value as Channel, accepting };
}

/** Reads a channel in the background. */
export function read(channel: Channel): { entries: Entry[]; texts(): (string | undefined)[]; ended: Promise<unknown> } {
  const entries: Entry[] = [];
  const ended = (async () => {
    for await (const entry of channel) entries.push(entry);
  })().then(() => "done", (error: unknown) => error);
  return { entries, ended, texts: () => entries.map(({ kind, message }) => message?.chat?.text ?? kind) };
}
