import { mkdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import type Axe from "axe-core";
import { type Browser, type BrowserContextOptions, chromium, type Locator, type Page } from "playwright-core";
import { afterAll, beforeAll, expect, inject } from "vitest";
import { chromiumOptions } from "./chromium.js";
import { OwnService, Service } from "./service.js";

/** Starts a service for one test, with settings and arguments of `telapi dev`. */
export function startService(settings: Record<string, string> = {}, ...args: string[]): Promise<OwnService> {
  return OwnService.start(inject("program"), settings, args);
}

/** The browser of this worker's tests, which ends with the worker. */
let sharedBrowser: Promise<Browser> | undefined;

/** A browser with a microphone, which the tests of a worker share, and `telapi dev`, which all tests share. */
export class Setup {
  browser!: Browser;
  readonly service: Service;

  constructor() {
    const { url, env } = inject("service");
    this.service = new Service(inject("program"), url, env);
    beforeAll(async () => {
      sharedBrowser ??= chromium.launch(chromiumOptions(inject("microphone"))).catch((error) => {
        sharedBrowser = undefined; // the next file tries again
        throw error;
      });
      this.browser = await sharedBrowser;
    });
    afterAll(() => Promise.all(this.browser?.contexts().map((context) => context.close()) ?? [])); // those of tests that failed
  }

  open(options: BrowserContextOptions = {}): Promise<Playground> {
    return Playground.open(this.browser, this.service, options);
  }

  /** Opens the page and connects. */
  async start(options: BrowserContextOptions = {}): Promise<Playground> {
    const playground = await this.open(options);
    await playground.start();
    return playground;
  }
}

/** Opens a tab. Actions and navigations have time enough on a busy machine. */
export async function openTab(browser: Browser, options: BrowserContextOptions): Promise<Page> {
  const context = await browser.newContext(options);
  context.setDefaultTimeout(240_000);
  return context.newPage();
}

/** The playground in a browser tab, and the errors of the page. */
export class Playground implements AsyncDisposable {
  readonly errors: string[] = [];
  /** The errors that the test causes. */
  expected = /$^/;

  private constructor(readonly page: Page) {
    page.on("console", (message) => message.type() === "error" && this.errors.push(message.text()));
    page.on("pageerror", (error) => this.errors.push(error.message));
    page.on("request", (request) => new URL(request.url()).origin === new URL(page.url()).origin || page.url() === "about:blank" || this.errors.push(`request to another origin: ${request.url()}`));
  }

  static async open(browser: Browser, service: Service, options: BrowserContextOptions = {}): Promise<Playground> {
    const playground = new Playground(await openTab(browser, { viewport: { width: 1440, height: 900 }, ...options }));
    // All tabs share the browser's clipboard, so each has its own instead.
    await playground.page.addInitScript(() =>
      Object.defineProperty(navigator.clipboard, "writeText", { value: async (text: string) => void Object.assign(window, { copied: text }) }));
    await playground.page.goto(`${service.url}/playground/`);
    await playground.page.locator(options.extraHTTPHeaders ? "#keypad button" : "#modes input").first().waitFor({ state: "attached" }); // a page of another machine has no endpoints
    return playground;
  }

  /** Selects the mode of the next session. */
  async chooseMode(mode: string): Promise<void> {
    await this.page.locator("#modes input").first().waitFor({ state: "attached" }); // until then, the page closes the details
    await this.page.locator("#more").evaluate((details: HTMLDetailsElement) => (details.open = true));
    await this.page.getByRole("radio", { name: mode }).check();
  }

  async connect(mode = "chat"): Promise<void> {
    await this.chooseMode(mode);
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
  message(text: string | RegExp): Locator {
    return this.page.getByRole("log").getByRole("listitem").filter({ hasText: text });
  }

  /** The rows of the timeline that contain the text, also while another panel is shown. */
  storedEvent(text: string | RegExp): Locator {
    return this.page.locator("#timeline li").filter({ hasText: text });
  }

  /** The rows of the timeline that contain the text. */
  timelineEvent(text: string | RegExp): Locator {
    return this.page.getByRole("list", { name: "Timeline" }).getByRole("button").filter({ hasText: text });
  }

  async waitForState(text: string): Promise<void> {
    await this.page.getByRole("status").filter({ hasText: new RegExp(text) }).waitFor(); // "Not connected" is not "Connected"
  }

  /** The text that the page has copied. */
  copied(): Promise<string> {
    return this.page.evaluate<string>("copied");
  }

  async sessionId(): Promise<string> {
    return (await this.page.locator("#session").textContent())!;
  }

  /** Checks that the page is accessible and does not scroll sideways, and saves a screenshot. */
  async checkAccessible(screenshot: string): Promise<void> {
    await checkAccessible(this.page);
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
    expect(this.errors.filter((text) => !this.expected.test(text) && !explained.test(text))).toEqual([]);
  }
}

/** Checks that a page is accessible and does not scroll sideways. */
export async function checkAccessible(page: Page): Promise<void> {
  if (!(await page.evaluate(() => "axe" in window))) await page.evaluate(axe); // once for each load
  const violations = await page.evaluate(async () => { // the passed rules would be most of the data
    const { violations } = await (window as unknown as { axe: typeof Axe }).axe.run({ resultTypes: ["violations"] });
    return violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html).join(" ")}`);
  });
  expect(violations).toEqual([]);
  expect(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "the page does not scroll sideways").toBe(true);
}

/** The page asks why a handshake has failed, as one may on a busy machine: not because of its token. */
const explained = /status of 426/;

/** The names of the meters in a call. */
export const meters = { you: "Level of your microphone", bot: "Level of the bot" };
/** The value of a meter at -42 dB, well above noise. */
export const audible = 30;

/** Polls the highest value that a meter has shown since the given function was created. */
export async function highest(page: Page, name: string): Promise<() => Promise<number>> {
  await page.getByRole("meter", { name, includeHidden: true }).evaluate((meter) => {
    meter.dataset.highest = "0";
    new MutationObserver(() => (meter.dataset.highest = String(Math.max(Number(meter.dataset.highest), Number(meter.ariaValueNow))))).observe(meter, { attributeFilter: ["aria-valuenow"] });
  });
  return async () => Number(await page.getByRole("meter", { name, includeHidden: true }).getAttribute("data-highest"));
}

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const artifacts = new URL("../../test-artifacts", import.meta.url).pathname;
