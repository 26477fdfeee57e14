import { spawn } from "node:child_process";
import { once } from "node:events";
import { chromium } from "playwright-core";
import { expect, inject, test } from "vitest";
import { Service, waitForLine } from "./service.js";

const server = new URL("../../../../examples/token-server/server.mjs", import.meta.url).pathname;

test("the page of examples/token-server gets a token and talks to the runtime", async () => {
  const service = Service.at(inject("service"));
  const env = { PATH: process.env.PATH!, TELAPI_URL: service.url, TELAPI_KEY: service.key, TELAPI_ENDPOINT: service.endpointId, PORT: "0" };
  const example = spawn(process.execPath, [server], { env, stdio: ["ignore", "pipe", "inherit"] });
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox", "--disable-dev-shm-usage"] });
  try {
    const page = await browser.newPage();
    page.setDefaultTimeout(150_000);
    await page.goto(/http:\S+/.exec(await waitForLine(example, "open "))![0]);
    await page.getByRole("status").filter({ hasText: "connected" }).waitFor();
    await page.getByRole("textbox").fill("Good day");
    await page.keyboard.press("Enter");
    await expect.poll(() => page.getByRole("listitem").allTextContents()).toEqual(["Good day", "Good day"]);
  } finally {
    await browser.close();
    example.kill();
    await once(example, "exit");
  }
});

test("examples/token-server names missing settings", async () => {
  const example = spawn(process.execPath, [server], { env: { PATH: process.env.PATH! }, stdio: "ignore" });
  expect(await once(example, "exit")).toEqual([2, null]);
});
