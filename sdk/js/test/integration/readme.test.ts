import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, readFile, rm, symlink, writeFile, mkdir } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, inject, test } from "vitest";
import { Service } from "./service.js";
import { launchWithMicrophone, PageServer } from "./voice.js";

const service = Service.at(inject("service"));

// The test creates a project with the package and the README's example. A preloaded module provides the page's server,
// which forwards tokens, and the global WebSocket that Node 20 does not have.
test("the README example works", async () => {
  const readme = await readFile(new URL("../../README.md", import.meta.url), "utf8");
  const example = /```js\n([^]*?)```/.exec(readme)![1]!;
  expect(example.trim().split("\n").length).toBeLessThanOrEqual(14);
  const dir = await mkdtemp(join(tmpdir(), "telapi-sdk-example-"));
  try {
    const sdk = new URL("../..", import.meta.url).pathname;
    await mkdir(join(dir, "node_modules/@telapi"), { recursive: true });
    await symlink(sdk, join(dir, "node_modules/@telapi/sdk"));
    await symlink(join(sdk, "node_modules/ws"), join(dir, "node_modules/ws"));
    await writeFile(join(dir, "example.mjs"), example);
    await writeFile(join(dir, "preload.mjs"), `
      import { WebSocket } from "ws";
      globalThis.WebSocket ??= WebSocket;
      const { fetch } = globalThis;
      const tokenResponse = ${JSON.stringify(await service.issue())};
      globalThis.fetch = (url, init) => url === "/call-token" ? Promise.resolve(Response.json(tokenResponse)) : fetch(url, init);
    `);
    const page = spawn(process.execPath, ["--import", "./preload.mjs", "example.mjs"], { cwd: dir, stdio: ["ignore", "pipe", "inherit"] });
    let printed = "";
    page.stdout.on("data", (text) => (printed += text));
    // The answer can arrive before the acknowledgement.
    await expect.poll(() => printed.split("\n")).toEqual(expect.arrayContaining(["connecting ", "connected ", "delivered", expect.stringContaining("received: Good day")]));
    page.kill();
    await once(page, "exit");
  } finally {
    await rm(dir, { recursive: true, force: true });
  }
});

const html = `<!doctype html><title>Call</title><button id="call">Call</button><button id="hangup">Hang up</button>
  <script type="importmap">{"imports": {"@telapi/sdk": "./esm/index.js", "@telapi/sdk/voice": "./esm/voice.js"}}</script>
  <script type="module" src="example.js"></script>`;

test.each(["webrtc", "audio"])("the README's example of a call in mode %s works", async (mode) => {
  const readme = await readFile(new URL("../../README.md", import.meta.url), "utf8");
  const example = [...readme.matchAll(/```js\n([^]*?)```/g)].map(([, code]) => code!).find((code) => code.includes(`{"mode":"${mode}"}`))!;
  expect(example.trim().split("\n").length).toBeLessThanOrEqual(12);
  await using server = await PageServer.start({ page: html, "example.js": example, "call-token": JSON.stringify(await service.issue({ mode })) });
  await using browser = await launchWithMicrophone();
  const tab = await browser.newPage();
  const received: string[] = [];
  tab.on("websocket", (socket) => socket.on("framereceived", ({ payload }) => received.push(String(payload))));
  await tab.goto(server.url);
  await tab.getByRole("button", { name: "Call" }).click();
  // The runtime echoes the frames.
  const expected = mode === "audio" ? '"encoding":"alaw"' : '"command":"webrtc_offer"';
  await expect.poll(() => received.some((frame) => frame.includes(expected))).toBe(true);
});
