import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { execFile } from "node:child_process";
import { promisify } from "node:util";
import { expect, test } from "vitest";
import { Playground, Setup, startService } from "./browser.js";

const setup = new Setup();

async function expectNothingWaits({ page }: Playground): Promise<void> {
  await page.locator("#timeline:not(:has(li[data-waiting]))").waitFor();
  await page.locator("#waiting-reasons").filter({ hasText: /^$/ }).waitFor({ state: "attached" });
}

test("a parked answer names the work item that it waits for, which the page can cancel", async () => {
  await using playground = await setup.start();
  const { page } = playground;
  const id = await playground.sessionId();
  await setup.service.waitForBot(id);
  const { stdout } = await promisify(execFile)(setup.service.program, ["callback", "issue", "--channel", id], { env: setup.service.env });
  expect(stdout).toContain("blocks later ones");
  const blocking = /work item id\s+(\S{8})/.exec(stdout)![1]!;
  await playground.send("hello");
  await page.getByText(new RegExp(`is answered, waits for work item ${blocking}… \\(registered \\d\\d:\\d\\d:\\d\\d, expires \\d\\d:\\d\\d:\\d\\d\\)`)).waitFor();
  await playground.checkAccessible("waiting-parked");
  await playground.click(`Cancel work item ${blocking}…`);
  await playground.message("Hello! How are you?").waitFor();
  await expectNothingWaits(playground);
});

test("a session without a runtime says how to start one", async () => {
  await using service = await startService({}, "--no-demo");
  await using playground = await Playground.open(setup.browser, service);
  await playground.connect();
  await playground.page.getByText("No runtime has claimed this session").waitFor();
  await playground.page.locator("#timeline li[data-waiting]").filter({ hasText: "service to runtime: sessionbrowser connected" }).waitFor();
  expect(await playground.page.locator("#timeline li[data-waiting]").filter({ hasNotText: "service to runtime" }).count()).toBe(0);
  await playground.checkAccessible("waiting-runtime");
  await playground.click("Copy command");
  await playground.page.getByRole("button", { name: "Copied" }).waitFor();
  expect(await playground.copied()).toMatch(new RegExp(`^TELAPI_URL=${service.url} TELAPI_KEY=tk_\\w{6,}.* go -C examples/runtime-go run ./echo$`));
  await playground.click("Disconnect");
  await playground.waitForState("Ended");
  await expectNothingWaits(playground);
});

test("a session that a runtime claims after a reconnect no longer waits for one", async () => {
  await using playground = await setup.open();
  const event = { at: 1, lane: "service", kind: "session", title: "", sessionId: "s" };
  const waits = (forRuntime: boolean) => ({ ...event, kind: "waiting", data: { forRuntime, workItems: [] } });
  let feed: object[] = [{ ...event, to: "runtime", title: "browser connected" }, waits(true)];
  await playground.page.route(/\/playground\/feed/, (route) => route.fulfill({ body: feed.map((line) => JSON.stringify(line) + "\n").join("") }));
  await playground.start();
  const [row, panel] = [playground.page.locator("#timeline li[data-waiting]"), playground.page.getByText("No runtime has claimed this session")];
  await row.waitFor();
  await panel.waitFor();
  await playground.disturb("Cut connection");
  feed = [waits(false), { ...event, title: "seen while disconnected" }];
  await playground.storedEvent("seen while disconnected").waitFor();
  expect([await row.count(), await panel.count()]).toEqual([1, 1]);
  await playground.disturb("Resume");
  await expectNothingWaits(playground); // the feed sends only changes
});

test("a bot that rejects the request is shown with status and body", async () => {
  const bot = createServer((_, response) => response.writeHead(400).end("unknown channel\n"));
  await new Promise<void>((done) => bot.listen(0, "127.0.0.1", done));
  await using _ = { [Symbol.asyncDispose]: async () => void bot.close() };
  await using service = await startService({}, "--bot", `http://127.0.0.1:${(bot.address() as AddressInfo).port}/`);
  await using playground = await Playground.open(setup.browser, service);
  const url = `http://127.0.0.1:${(bot.address() as AddressInfo).port}/`;
  await playground.page.getByText(`Your bot answers: ${url}`).waitFor();
  await playground.connect();
  await playground.message("Your bot answers what you say.").waitFor();
  expect(await playground.page.getByText("demo bot").count()).toBe(0);
  await playground.send("hello");
  await playground.message("The bot returned status 400, not 202: unknown channel. Try again.").waitFor();
  await playground.timelineEvent("bot failed: 400 unknown channel").waitFor();
  expect(await playground.page.getByText("unreachable").count()).toBe(0);
});

test("a copied callback contains a new token on request", async () => {
  await using playground = await setup.start();
  await playground.send("hello");
  await playground.message("Hello! How are you?").waitFor(); // or the callback would be parked
  await playground.timelineEvent("answer from bot").click();
  await playground.click("Copy as curl with a new token");
  await playground.page.getByRole("button", { name: "Copied" }).waitFor();
  const command = await playground.copied();
  expect(command).toMatch(/^# The token works once, until \d\d:\d\d:\d\d\. .*\ncurl -X POST/);
  const { stdout } = await promisify(execFile)("sh", ["-c", command.replace("curl", "curl -sS")]);
  expect(JSON.parse(stdout)).toMatchObject({ status: "accepted" });
});
