import { type ChildProcess, execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, readFileSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { promisify } from "node:util";
import type { AxeResults } from "axe-core";
import { type Browser, type BrowserContextOptions, chromium, type Locator, type Page } from "playwright-core";
import { afterAll, beforeAll, expect, inject } from "vitest";

/** `telapi dev` on free ports with a temporary data directory. */
export class Service implements AsyncDisposable {
  private constructor(
    readonly url: string,
    private readonly env: Record<string, string>,
    private readonly args: string[],
    private server: ChildProcess,
  ) {}

  static async start(settings: Record<string, string> = {}, ...args: string[]): Promise<Service> {
    const env = {
      PATH: process.env.PATH!, HOME: process.env.HOME!, OTEL_ENABLED: "false", TELAPI_PORT: "0", MEDIA_PORT: "0",
      DATA_DIR: await mkdtemp(join(tmpdir(), "telapi-playground-data-")), ...settings,
    };
    const [url, server] = await Service.spawn(env, args);
    return new Service(url, { ...env, TELAPI_PORT: new URL(url).port }, args, server);
  }

  private static async spawn(env: Record<string, string>, args: string[]): Promise<[url: string, server: ChildProcess]> {
    const server = spawn(inject("program"), ["dev", "--json", ...args], { env, stdio: ["ignore", "pipe", "ignore"] });
    for await (const line of createInterface({ input: server.stdout })) {
      if (!line.startsWith("{")) continue;
      server.stdout.resume(); // keep the pipe from blocking
      return [(JSON.parse(line) as { url: string }).url, server];
    }
    throw new Error("telapi dev exited before it was ready");
  }

  /** Stops the server and starts it again on the same port and data directory. `meanwhile` runs while it is down. */
  async restart(signal: NodeJS.Signals, meanwhile = async () => {}): Promise<void> {
    await this.stop(signal);
    await meanwhile();
    [, this.server] = await Service.spawn(this.env, this.args);
  }

  private async stop(signal: NodeJS.Signals): Promise<void> {
    const exit = once(this.server, "exit");
    this.server.kill(signal);
    await exit;
  }

  /** Sends to the browser on behalf of the runtime. */
  async send(sessionId: string, type: string, payload: object): Promise<void> {
    await promisify(execFile)(inject("program"), ["channel", "send", sessionId, "--type", type, "--payload", JSON.stringify(payload)], { env: this.env });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.stop("SIGTERM");
    await rm(this.env.DATA_DIR!, { recursive: true, force: true });
  }
}

/** Debian's Chromium, or the one in $CHROMIUM. */
export function launch(...args: string[]): Promise<Browser> {
  return chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox", "--disable-dev-shm-usage", ...args] });
}

/** A browser, and `telapi dev`, for all tests of a file. */
export class Setup {
  browser!: Browser;
  service!: Service;

  /** Takes the arguments of the browser and of `telapi dev`. */
  constructor({ browser = [], dev = [] }: { browser?: string[]; dev?: string[] } = {}) {
    beforeAll(async () => {
      [this.browser, this.service] = await Promise.all([launch(...browser), Service.start({}, ...dev)]);
    });
    afterAll(async () => {
      await this.browser?.close();
      await this.service?.[Symbol.asyncDispose]();
    });
  }

  open(options: BrowserContextOptions = {}): Promise<Playground> {
    return Playground.open(this.browser, this.service, options);
  }
}

/** Opens a tab. Actions and navigations have time enough on a busy machine. */
export async function openTab(browser: Browser, options: BrowserContextOptions): Promise<Page> {
  const context = await browser.newContext(options);
  context.setDefaultTimeout(120_000);
  return context.newPage();
}

/** The playground in a browser tab, and the errors of the page. */
export class Playground implements AsyncDisposable {
  readonly errors: string[] = [];

  private constructor(readonly page: Page) {
    page.on("console", (message) => message.type() === "error" && this.errors.push(message.text()));
    page.on("pageerror", (error) => this.errors.push(error.message));
    page.on("request", (request) => new URL(request.url()).origin === new URL(page.url()).origin || page.url() === "about:blank" || this.errors.push(`request to another origin: ${request.url()}`));
  }

  static async open(browser: Browser, service: Service, options: BrowserContextOptions = {}): Promise<Playground> {
    const playground = new Playground(await openTab(browser, { viewport: { width: 1440, height: 900 }, permissions: ["clipboard-read", "clipboard-write"], ...options }));
    await playground.page.goto(`${service.url}/playground/`);
    await playground.page.getByRole("radio").first().waitFor();
    return playground;
  }

  async connect(mode = "chat"): Promise<void> {
    await this.page.getByRole("radio", { name: mode }).check();
    await this.click("Connect");
  }

  /** Connects and waits for the bot's greeting. */
  async start(mode = "chat"): Promise<void> {
    await this.connect(mode);
    await this.message("Hello, this is the demo bot").waitFor();
    await this.waitForState("Connected");
  }

  async send(text: string): Promise<void> {
    await this.page.getByRole("textbox", { name: "Message" }).fill(text);
    await this.page.keyboard.press("Enter");
  }

  click(name: string): Promise<void> {
    return this.page.getByRole("button", { name, exact: true }).click();
  }

  /** Shows a panel by the name of its tab. */
  showTab(name: string): Promise<void> {
    return this.page.getByRole("tab", { name, exact: true }).click();
  }

  /** Clicks a button of the panel Resilience, and shows the previous panel again. */
  async disturb(name: string): Promise<void> {
    const previous = await this.page.getByRole("tab", { selected: true }).textContent();
    await this.showTab("Resilience");
    await this.click(name);
    await this.showTab(previous!);
  }

  /** The messages of the conversation that contain the text. */
  message(text: string): Locator {
    return this.page.getByRole("log").getByRole("listitem").filter({ hasText: text });
  }

  /** The rows of the timeline that contain the text. */
  timelineEvent(text: string | RegExp): Locator {
    return this.page.getByRole("list", { name: "Timeline" }).getByRole("button").filter({ hasText: text });
  }

  async waitForState(text: string): Promise<void> {
    await this.page.getByRole("status").filter({ hasText: text }).waitFor();
  }

  async sessionId(): Promise<string> {
    return (await this.page.locator("#session").textContent())!;
  }

  /** Checks that the page is accessible and does not scroll sideways, and saves a screenshot. */
  async checkAccessible(screenshot: string): Promise<void> {
    await this.page.evaluate(axe);
    const { violations } = (await this.page.evaluate("axe.run()")) as AxeResults;
    expect(violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html).join(" ")}`)).toEqual([]);
    expect(await this.page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "the page does not scroll sideways").toBe(true);
    await this.screenshot(screenshot);
  }

  /** Saves a screenshot in test-artifacts. */
  async screenshot(name: string): Promise<void> {
    mkdirSync(artifacts, { recursive: true });
    await this.page.screenshot({ path: join(artifacts, `${name}.png`) });
    console.log(`saved ${join(artifacts, `${name}.png`)}`);
  }

  /** Closes the page. The test fails if the browser reported unexpected errors. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.page.context().close();
    expect(this.errors).toEqual([]);
  }
}

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const artifacts = new URL("../../test-artifacts", import.meta.url).pathname;
