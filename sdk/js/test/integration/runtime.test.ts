import { spawn } from "node:child_process";
import { once } from "node:events";
import { copyFile, mkdir, mkdtemp, rm, symlink, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, inject, test } from "vitest";
import { WebSocket } from "ws";
import { connect } from "../../src/index.js";
import { Service } from "./service.js";

const sdk = new URL("../..", import.meta.url).pathname;
const profile = {
  commandSources: ["bot"],
  commandPolicies: [{ type: "transfer", enabled: true, allowedTargets: ["tel:+49*"] }, { type: "hangup", enabled: true }],
};
const service = Service.at(inject("service"));
let project: string;

// A project with the package, and a team without the echo runtime of the other tests.
beforeAll(async () => {
  project = await mkdtemp(join(tmpdir(), "telapi-sdk-runtime-"));
  await mkdir(join(project, "node_modules/@telapi"), { recursive: true });
  await symlink(sdk, join(project, "node_modules/@telapi/sdk"));
  await writeFile(join(project, "profile.json"), JSON.stringify(profile));
  const team = (await service.telapi("team", "create", "Runtimes")).id as string;
  service.endpointId = (await service.telapi("endpoint", "create", "--team", team, "--name", "Runtimes", "--mode", "chat", "--profile", join(project, "profile.json"))).id as string;
  service.key = (await service.telapi("key", "create", "--team", team, "--scope", "CREATE_CALL_TOKEN", "--scope", "RUN_CALLS")).key as string;
});
afterAll(() => rm(project, { recursive: true, force: true }));

/** A browser's session that records the chat messages it receives. */
async function browse(): Promise<{ say(text: string): Promise<string>; heard: string[]; ended(): boolean; [Symbol.dispose](): void }> {
  const session = connect({ token: await service.issue(), WebSocket });
  const heard: string[] = [];
  session.on("chat", ({ text }) => heard.push(text!));
  return {
    heard,
    say: (text) => session.send("chat", { text }),
    ended: () => session.state === "ended",
    [Symbol.dispose]: () => session.dispose(),
  };
}

/** A running example. */
interface Example extends AsyncDisposable {
  /** Resolves with the exit code and what it printed to stderr. */
  failure(): Promise<[code: number | null, message: string]>;
}

/** Starts a program of examples/runtime-node. */
async function example(file: string, settings: Record<string, string>): Promise<Example> {
  const dir = await mkdtemp(join(project, "example-")); // its parent has the package
  await copyFile(join(sdk, "../../examples/runtime-node", file), join(dir, file));
  const env = { PATH: process.env.PATH!, TELAPI_URL: service.url, TELAPI_KEY: service.key, ...settings };
  const program = spawn(process.execPath, [file], { cwd: dir, env, stdio: ["ignore", "pipe", "pipe"] });
  program.stdout.resume();
  let message = "";
  program.stderr.setEncoding("utf8").on("data", (text: string) => (message += text));
  return {
    failure: () => once(program, "close").then(([code]) => [code as number | null, message]),
    async [Symbol.asyncDispose]() {
      if (program.exitCode !== null) return;
      program.kill();
      await once(program, "exit");
    },
  };
}

test("examples/runtime-node/echo.mjs echoes until goodbye", async () => {
  await using _ = await example("echo.mjs", {});
  using browser = await browse();
  await browser.say("Good day");
  await browser.say("goodbye");
  await expect.poll(() => browser.ended()).toBe(true);
  expect(browser.heard).toEqual(["Good day", "goodbye"]);
});

test.each(["echo.mjs", "bot.mjs"])("examples/runtime-node/%s ends with one line if it cannot run", async (file) => {
  const settings = { BOT_URL: "http://127.0.0.1:1/" };
  await using rejected = await example(file, { ...settings, TELAPI_KEY: "tk_wrong" });
  expect(await rejected.failure()).toEqual([1, expect.stringMatching(/^[^\n]*API key[^\n]*\n$/)]);
  await using unset = await example(file, { ...settings, TELAPI_URL: "" });
  expect(await unset.failure()).toEqual([1, expect.stringMatching(/^Set TELAPI_URL[^\n]*\n$/)]);
});

/** The request of a runtime that docs/providers.md describes. */
interface Work {
  kind: string;
  channelId: string;
  workItemId: string;
  text: string;
  callback: { url: string; token: string; expiresAt: string };
}

test("examples/runtime-node/bot.mjs asks a bot and applies its commands", async () => {
  const bot = createServer(async (request, response) => {
    const chunks: Buffer[] = [];
    for await (const chunk of request) chunks.push(chunk as Buffer);
    const work = JSON.parse(String(Buffer.concat(chunks))) as Work;
    expect(work).toEqual({ kind: "bot", channelId: expect.any(String), workItemId: expect.any(String), text: expect.any(String), callback: expect.anything() });
    expect(Date.parse(work.callback.expiresAt)).toBeGreaterThan(Date.now());
    const { channelId, text, callback: { url, token } } = work;
    response.writeHead(text === "fail" ? 500 : 202).end();
    if (text === "fail") return;
    const body = {
      conversation: { identifier: { id: channelId } },
      messages: { timestamp: new Date().toISOString(), message: [{ messageId: 1, content: { textMessage: { textPlain: `You said ${text}.` } } }] },
      actions: text === "transfer" ? [{ type: "transfer", target: "tel:+4930123" }] : text === "hang up" ? [{ type: "hangup", reason: "done" }] : [],
    };
    const posted = await fetch(url, { method: "POST", headers: { "Content-Type": "application/json", token }, body: JSON.stringify(body) });
    expect(await posted.json()).toMatchObject({ status: "accepted" });
  }).listen(0, "127.0.0.1");
  await once(bot, "listening");
  await using _ = await example("bot.mjs", { BOT_URL: `http://127.0.0.1:${(bot.address() as AddressInfo).port}/` });
  using first = await browse();
  using second = await browse();
  await first.say("hello");
  await expect.poll(() => first.heard).toEqual(["You said hello."]);
  await first.say("fail");
  await expect.poll(() => first.heard).toHaveLength(2);
  await first.say("transfer");
  await second.say("hang up");
  await expect.poll(() => first.ended() && second.ended()).toBe(true);
  expect(first.heard).toEqual(["You said hello.", "The bot is not available. Try again later.", "You said transfer.", "You are being transferred to tel:+4930123."]);
  expect(second.heard).toEqual(["You said hang up."]);
  bot.close();
});
