import { type ChildProcess, execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { promisify } from "node:util";
import { freePort } from "../../sdk/js/test/port.js";

/** A running `telapi dev`, as another process sees it. */
export class Service {
  constructor(
    readonly program: string,
    readonly url: string,
    readonly env: Record<string, string>,
  ) {}

  /** Runs a telapi command. */
  async telapi(...args: string[]): Promise<void> {
    await promisify(execFile)(this.program, args, { env: this.env });
  }

  /** Lets the demo wait for its bot as long as it can, so that a test on a slow machine sees it wait. */
  async waitForBot(sessionId: string): Promise<void> {
    const { apiKey } = (await (await fetch(`${this.url}/playground/config.json`)).json()) as { apiKey: string };
    const issued = await fetch(`${this.url}/playground/sessions/${sessionId}/credential?kind=bot`, { method: "POST", headers: { "X-API-Key": apiKey } });
    const { token, path } = (await issued.json()) as { token: string; path: string };
    const event = { custom: { name: "config", value: { sessionParams: { botNoInputTimeoutMs: 60_000, botNoInputGiveUpTimeoutMs: 120_000 } } } };
    const body = JSON.stringify({ conversation: { identifier: { id: sessionId } }, messages: { message: [{ content: { event } }] } });
    const response = await fetch(this.url + path, { method: "POST", headers: { token, "Content-Type": "application/json" }, body });
    if (response.status !== 202) throw new Error(`${response.status} ${await response.text()}`);
  }

  /** Sends to the browser on behalf of the runtime. */
  async send(sessionId: string, type: string, payload: object): Promise<void> {
    await this.telapi("channel", "send", sessionId, "--type", type, "--payload", JSON.stringify(payload));
  }
}

/** `telapi dev` on free ports with a temporary data directory. */
export class OwnService extends Service implements AsyncDisposable {
  private constructor(
    program: string, url: string, env: Record<string, string>,
    private readonly args: string[],
    private server: ChildProcess,
  ) {
    super(program, url, env);
  }

  static async start(program: string, settings: Record<string, string>, args: string[]): Promise<OwnService> {
    const env = {
      PATH: process.env.PATH!, HOME: process.env.HOME!, OTEL_ENABLED: "false", TELAPI_PORT: String(await freePort()), MEDIA_PORT: "0",
      DATA_DIR: await mkdtemp(join(tmpdir(), "telapi-playground-data-")), ...settings,
    };
    const [url, server] = await OwnService.spawn(program, env, args);
    return new OwnService(program, url, env, args, server);
  }

  private static async spawn(program: string, env: Record<string, string>, args: string[]): Promise<[url: string, server: ChildProcess]> {
    const server = spawn(program, ["dev", "--json", ...args], { env, stdio: ["ignore", "pipe", "ignore"] });
    for await (const line of createInterface({ input: server.stdout })) {
      if (!line.startsWith("{")) continue;
      server.stdout.resume(); // keep the pipe from blocking
      return [(JSON.parse(line) as { url: string }).url, server];
    }
    throw new Error("telapi dev exited before it was ready");
  }

  /** Stops the server and starts it again on the same data directory, and on its port, which nothing else has taken. `meanwhile` runs while it is down. */
  async restart(signal: NodeJS.Signals, meanwhile = async () => {}, args = this.args): Promise<void> {
    await this.stop(signal);
    await meanwhile();
    [, this.server] = await OwnService.spawn(this.program, this.env, args);
  }

  private async stop(signal: NodeJS.Signals): Promise<void> {
    const exit = once(this.server, "exit");
    this.server.kill(signal);
    await exit;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.stop("SIGTERM");
    await rm(this.env.DATA_DIR!, { recursive: true, force: true });
  }
}
