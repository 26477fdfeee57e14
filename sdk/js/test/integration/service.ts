import { type ChildProcess, execFile, spawn } from "node:child_process";
import { createHmac } from "node:crypto";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { promisify } from "node:util";
import { inject } from "vitest";
import type { TokenResponse } from "../../src/index.js";

/** A real telapi on a Redis of its own, with a runtime that echoes what the sessions of its team say. */
export class Service implements AsyncDisposable {
  url = "";
  private key = "";
  team = "";
  endpointId = "";
  private server: ChildProcess | undefined;
  private readonly others: ChildProcess[] = [];

  private constructor(
    private readonly dir: string,
    private readonly env: Record<string, string>,
  ) {}

  static async start(settings: Record<string, string> = {}): Promise<Service> {
    const dir = await mkdtemp(join(tmpdir(), "telapi-sdk-data-"));
    const redis = await freePort();
    const env = {
      PATH: process.env.PATH!, HOME: process.env.HOME!, OTEL_ENABLED: "false", DATA_DIR: dir, TELAPI_PORT: String(await freePort()), MEDIA_PORT: "0",
      REDIS_URL: `redis://127.0.0.1:${redis}`, JWT_SECRET: "a secret of the tests that is long enough", SESSION_RECONNECT_JITTER: "200ms", ...settings,
    };
    const service = new Service(dir, env);
    const store = spawn("redis-server", ["--port", String(redis), "--bind", "127.0.0.1", "--save", "", "--dir", dir], { stdio: ["ignore", "pipe", "inherit"] });
    service.others.push(store);
    await line(store, "Ready to accept connections");
    await service.boot();
    const team = (service.team = (await service.telapi("team", "create", "SDK")).id as string);
    service.endpointId = (await service.telapi("endpoint", "create", "--team", team, "--name", "SDK", "--mode", "chat", "--mode", "audio")).id as string;
    service.key = (await service.telapi("key", "create", "--team", team, "--scope", "CREATE_CALL_TOKEN")).key as string;
    service.others.push(spawn(program("echo"), [team], { env, stdio: ["ignore", "ignore", "inherit"] }));
    return service;
  }

  private async boot(): Promise<void> {
    this.server = spawn(program("telapi"), ["dev", "--json"], { env: this.env, stdio: ["ignore", "pipe", "ignore"] });
    this.url = (JSON.parse(await line(this.server, "{")) as { url: string }).url;
  }

  /** Ends the server as an operator does, and starts it again on the same port. */
  async restart(): Promise<void> {
    await stop(this.server!, "SIGTERM");
    await this.boot();
  }

  /** A command of the program, with the object that it prints. */
  async telapi(...args: string[]): Promise<Record<string, unknown>> {
    const { stdout } = await promisify(execFile)(program("telapi"), [...args, "--json"], { env: this.env });
    return JSON.parse(stdout || "{}") as Record<string, unknown>;
  }

  async issue(body: object = {}): Promise<TokenResponse & { sessionId: string }> {
    const answer = await this.api("POST", "/api/v1/sessions/token", { endpointId: this.endpointId, mode: "chat", ...body });
    return (await answer.json()) as TokenResponse & { sessionId: string };
  }

  /** The token with other claims, signed as the service would. */
  resign(token: string, claims: object): string {
    const [head, body] = token.split(".") as [string, string];
    const other = { ...(JSON.parse(Buffer.from(body, "base64url").toString()) as object), ...claims };
    const text = `${head}.${Buffer.from(JSON.stringify(other)).toString("base64url")}`;
    return `${text}.${createHmac("sha256", this.env.JWT_SECRET!).update(text).digest("base64url")}`;
  }

  async api(method: string, path: string, body?: object): Promise<Response> {
    const answer = await fetch(this.url + path, {
      method,
      headers: { "X-API-Key": this.key, "Content-Type": "application/json" },
      ...(body ? { body: JSON.stringify(body) } : {}),
    });
    if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${await answer.text()}`);
    return answer;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all([this.server!, ...this.others].map((p) => stop(p, "SIGKILL")));
    await rm(this.dir, { recursive: true, force: true });
  }
}

function program(name: string): string {
  return join(inject("programs"), name);
}

async function stop(process: ChildProcess, signal: NodeJS.Signals): Promise<void> {
  if (process.exitCode !== null || process.signalCode !== null) return;
  const exit = once(process, "exit");
  process.kill(signal);
  await exit;
}

/** The first line of a program's output that holds the text. */
async function line(process: ChildProcess, text: string): Promise<string> {
  const lines = createInterface({ input: process.stdout! });
  for await (const said of lines) {
    if (said.includes(text)) {
      process.stdout!.resume(); // discard the rest, so that the process does not block
      return said;
    }
  }
  throw new Error(`${process.spawnfile} ended without printing ${text}`);
}

/** A port below those from which the kernel takes the clients', so that none of them has it before the server does. */
async function freePort(): Promise<number> {
  for (;;) {
    const port = 10_000 + Math.floor(Math.random() * 12_000);
    const server = createServer().listen(port, "127.0.0.1");
    try {
      await once(server, "listening");
    } catch {
      continue; // taken
    }
    await new Promise((done) => server.close(done));
    return port;
  }
}
