import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type Browser, chromium } from "playwright-core";
import { syllables, wav } from "../wav.js";

/** A browser whose microphone repeats a second of sound and a second of silence. */
export async function launchWithMicrophone(...args: string[]): Promise<Browser & AsyncDisposable> {
  const dir = mkdtempSync(join(tmpdir(), "telapi-sdk-voice-"));
  writeFileSync(join(dir, "voice.wav"), wav(2, (second) => (second < 1 ? syllables(second) : 0)));
  const browser = await launch("--use-fake-device-for-media-stream", `--use-file-for-fake-audio-capture=${join(dir, "voice.wav")}`, "--use-fake-ui-for-media-stream", ...args);
  browser.on("disconnected", () => rmSync(dir, { recursive: true, force: true }));
  return browser;
}

/** A browser that plays sound without a click. */
export async function launch(...args: string[]): Promise<Browser & AsyncDisposable> {
  const all = ["--no-sandbox", "--disable-dev-shm-usage", "--autoplay-policy=no-user-gesture-required", ...args];
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: all });
  return Object.assign(browser, { [Symbol.asyncDispose]: () => browser.close() });
}

/** Serves files of dist, and the given pages. */
export class PageServer implements AsyncDisposable {
  private constructor(private readonly server: Server) {}

  static async start(pages: Record<string, string>, headers: Record<string, string> = {}): Promise<PageServer> {
    const server = createServer((request, response) => {
      const path = request.url!.slice(1);
      for (const [name, value] of Object.entries(headers)) response.setHeader(name, value);
      response.setHeader("Content-Type", path.endsWith(".js") ? "text/javascript" : path === "call-token" ? "application/json" : "text/html");
      try {
        response.end(pages[path] ?? readFileSync(new URL(`../../dist/${path}`, import.meta.url)));
      } catch {
        response.writeHead(404).end();
      }
    });
    await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
    return new PageServer(server);
  }

  get port(): number {
    return (this.server.address() as AddressInfo).port;
  }

  get url(): string {
    return `http://127.0.0.1:${this.port}/page`;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.server.closeAllConnections();
    await new Promise((done) => this.server.close(done));
  }
}
