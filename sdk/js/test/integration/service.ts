import { type ChildProcess, execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { promisify } from "node:util";
import type { TokenResponse } from "../../src/index.js";
import { freePort } from "../port.js";

export interface ServiceAddress {
  dir: string;
  env: Record<string, string>;
  url: string;
  key: string;
  team: string;
  endpointId: string;
}

/** A telapi process with a Redis server, and a runtime that echoes the messages of the team's sessions. */
export class Service implements AsyncDisposable {
  url = "";
  key = "";
  team = "";
  endpointId = "";
  private server: ChildProcess | undefined; // unless another process runs it
  private readonly helpers: ChildProcess[] = []; // Redis and the runtime

  private constructor(
    private readonly dir: string,
    private readonly env: Record<string, string>,
  ) {}

  static async start(settings: Record<string, string> = {}): Promise<Service> {
    const dir = await mkdtemp(join(tmpdir(), "telapi-sdk-data-"));
    const redisPort = await freePort();
    const env = {
      PATH: process.env.PATH!, HOME: process.env.HOME!, OTEL_ENABLED: "false", DATA_DIR: dir, TELAPI_PORT: String(await freePort()), MEDIA_PORT: "0",
      REDIS_URL: `redis://127.0.0.1:${redisPort}`, JWT_SECRET: "a test secret of at least 32 bytes", SESSION_RECONNECT_JITTER: "200ms", ...settings,
    };
    const service = new Service(dir, env);
    const redis = spawn("redis-server", ["--port", String(redisPort), "--bind", "127.0.0.1", "--save", "", "--dir", dir], { stdio: ["ignore", "pipe", "inherit"] });
    service.helpers.push(redis);
    await waitForLine(redis, "Ready to accept connections");
    await service.startServer();
    const team = (service.team = (await service.telapi("team", "create", "SDK")).id as string);
    service.endpointId = (await service.telapi("endpoint", "create", "--team", team, "--name", "SDK", "--mode", "chat", "--mode", "audio", "--mode", "webrtc")).id as string;
    service.key = (await service.telapi("key", "create", "--team", team, "--scope", "CREATE_CALL_TOKEN")).key as string;
    const key = (await service.telapi("key", "create", "--team", team, "--scope", "RUN_CALLS")).key as string;
    service.helpers.push(spawn(program("echo"), { env: { TELAPI_URL: service.url, TELAPI_KEY: key }, stdio: ["ignore", "ignore", "inherit"] }));
    return service;
  }

  /** What another process needs to know to use this service. */
  get address(): ServiceAddress {
    const { dir, env, url, key, team, endpointId } = this;
    return { dir, env, url, key, team, endpointId };
  }

  /** The service at an address. Another process starts and stops it. */
  static at({ dir, env, ...address }: ServiceAddress): Service {
    return Object.assign(new Service(dir, env), address);
  }

  private async startServer(): Promise<void> {
    this.server = spawn(program("telapi"), ["dev", "--json"], { env: this.env, stdio: ["ignore", "pipe", "ignore"] });
    this.url = (JSON.parse(await waitForLine(this.server, "{")) as { url: string }).url;
  }

  /** Stops the server with SIGTERM and starts it again on the same port. */
  async restart(): Promise<void> {
    await stop(this.server!, "SIGTERM");
    await this.startServer();
  }

  /** Runs a telapi command and returns the JSON object that it prints. */
  async telapi(...args: string[]): Promise<Record<string, unknown>> {
    const { stdout } = await promisify(execFile)(program("telapi"), [...args, "--json"], { env: this.env });
    return JSON.parse(stdout || "{}") as Record<string, unknown>;
  }

  /** Creates a session. */
  async issue(body: object = {}): Promise<TokenResponse & { sessionId: string }> {
    const response = await this.api("POST", "/api/v1/sessions/token", { endpointId: this.endpointId, mode: "chat", ...body });
    return (await response.json()) as TokenResponse & { sessionId: string };
  }

  /** Sends a request with the API key. Throws unless it succeeds. */
  async api(method: string, path: string, body?: object): Promise<Response> {
    const response = await fetch(this.url + path, {
      method,
      headers: { "X-API-Key": this.key, "Content-Type": "application/json" },
      ...(body ? { body: JSON.stringify(body) } : {}),
    });
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${await response.text()}`);
    return response;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all([this.server!, ...this.helpers].map((process) => stop(process, "SIGKILL")));
    await rm(this.dir, { recursive: true, force: true });
  }
}

/** The path of a program that `make test` or test/setup.ts built. */
function program(name: string): string {
  return join(process.env.TEST_PROGRAMS!, name);
}

async function stop(process: ChildProcess, signal: NodeJS.Signals): Promise<void> {
  if (process.exitCode !== null || process.signalCode !== null) return;
  const exit = once(process, "exit");
  process.kill(signal);
  await exit;
}

/** Waits for the first line of a process's output that contains the text. */
export async function waitForLine(process: ChildProcess, text: string): Promise<string> {
  const lines = createInterface({ input: process.stdout! });
  for await (const line of lines) {
    if (line.includes(text)) {
      process.stdout!.resume(); // discard the rest, so that the process does not block
      return line;
    }
  }
  throw new Error(`${process.spawnfile} ended without printing ${text}`);
}
