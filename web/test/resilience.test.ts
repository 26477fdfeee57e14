import { expect, test } from "vitest";
import { Ledger } from "../src/ledger.js";
import { Playground, Setup, startService } from "./browser.js";

const setup = new Setup();

/** The counters of the panel. */
const counts = async ({ page }: Playground) => Object.fromEntries(await Promise.all(["sent", "acknowledged", "received", "lost", "duplicates"].map(async (name) => [name, Number(await page.locator(`#${name}-count`).textContent())])));

/** The number of the instance that serves the page's connection. */
async function servingInstance({ page }: Playground, other = ""): Promise<string> {
  const row = page.getByRole("listitem").filter({ hasText: "serves this connection", ...(other ? { hasNotText: `Instance ${other}` } : {}) });
  return /Instance (\d)/.exec((await row.textContent())!)![1]!;
}

test("a ledger counts lost and repeated messages in both directions", () => {
  const ledger = new Ledger(false);
  const send = (messageId: string, type = "chat") => ledger.addFrame({ direction: "to_ari", message: { type, messageId } as never });
  const acknowledge = (messageId: string) => ledger.addFrame({ direction: "to_browser", message: { type: "status", messageId: "-", status: { event: "ack", messageId } } as never });
  const receive = (messageId: string) => ledger.addFrame({ direction: "to_browser", message: { type: "chat", messageId, streamId: `cursor ${messageId}` } as never });
  const store = (messageId: string) => ledger.addEvent({ source: "entries", ids: ["entry:1", `stored:${messageId}`] });
  const publish = (messageId: string) => ledger.addEvent({ source: "messages", ids: [`message:${messageId}`] });

  send("audio", "audio");
  for (const id of ["a", "b", "rejected", "c"]) send(id);
  send("b"); // again, after a reconnect
  for (const id of ["a", "b", "c"]) acknowledge(id);
  store("a");
  publish("x");
  publish("y");
  expect(ledger.counts, "b, c, x and y may arrive").toEqual({ sent: 4, acknowledged: 3, received: 0, lost: 0, duplicates: 0 });
  store("c");
  receive("y");
  expect(ledger.counts, "b and x are lost").toEqual({ sent: 4, acknowledged: 3, received: 1, lost: 2, duplicates: 0 });
  store("b");
  receive("x");
  expect(ledger.counts).toEqual({ sent: 4, acknowledged: 3, received: 2, lost: 0, duplicates: 0 });
  store("a");
  receive("y");
  expect(ledger.counts).toEqual({ sent: 4, acknowledged: 3, received: 2, lost: 0, duplicates: 2 });
});

test("a ledger of a reloaded page ignores what the previous page received", () => {
  const ledger = new Ledger(true);
  for (const id of ["before", "x", "y", "z"]) ledger.addEvent({ source: "messages", ids: [`message:${id}`] });
  ledger.addEvent({ source: "entries", ids: ["stored:before"] });
  for (const id of ["x", "z"]) ledger.addFrame({ direction: "to_browser", message: { type: "chat", messageId: id, streamId: id } as never });
  expect(ledger.counts).toEqual({ sent: 0, acknowledged: 0, received: 2, lost: 1, duplicates: 0 });
});

test("the conversation continues when its instance is killed, and both instances serve after a restart", async ({ expect }) => {
  await using service = await startService({}, "--instances", "2");
  await using playground = await Playground.open(setup.browser, service);
  const { page } = playground;
  await playground.showTab("Resilience");
  await playground.start();
  await servingInstance(playground);
  await playground.checkAccessible("resilience-instances");
  const said: string[] = [];
  const say = async (text: string) => {
    said.push(text);
    await playground.send(text);
  };
  let killed = "";
  for (const round of ["first", "second"]) {
    const serving = await servingInstance(playground, killed);
    await say(`before the ${round} kill`);
    await playground.click(`Kill instance ${serving}`);
    for (const n of [1, 2, 3]) await say(`${round} ${n}`);
    await playground.message(`You said "${round} 3"`).waitFor();
    await page.getByText(new RegExp(`Instance ${serving}: stopped`)).waitFor();
    expect(await servingInstance(playground, serving)).not.toBe(serving);
    await playground.screenshot(`resilience-${round}-kill`);
    await playground.click(`Restart instance ${serving}`);
    await page.getByText(new RegExp(`Instance ${serving}: running`)).waitFor();
    killed = serving;
  }
  for (const text of said) await playground.message(text).filter({ hasText: "acknowledged" }).waitFor();
  const answers = (await page.locator("#chat li:not(.you) p").allTextContents()).filter((text) => text.startsWith("You said"));
  expect(answers.map((text) => /"(.*)"/.exec(text)![1])).toEqual(said);
  await expect.poll(() => counts(playground)).toMatchObject({ sent: said.length, acknowledged: said.length, lost: 0, duplicates: 0 });
  expect((await counts(playground)).received).toBeGreaterThanOrEqual(said.length);
});

test("the panel sees the instance, a message that is lost and one that arrives twice", async ({ expect }) => {
  await using playground = await setup.open();
  const { page } = playground;
  await page.routeWebSocket(/\/ws\/session/, (route) => {
    const server = route.connectToServer();
    server.onMessage((message) => {
      const times = String(message).includes("lose this") ? 0 : String(message).includes("repeat this") ? 2 : 1;
      for (let n = 0; n < times; n++) route.send(message);
    });
  });
  await page.reload(); // WebSockets are routed from the next load on
  await playground.showTab("Resilience");
  await playground.start();
  const id = await playground.sessionId();
  const before = { sent: 0, acknowledged: 0, received: 1, lost: 0, duplicates: 0 }; // the greeting
  await expect.poll(() => counts(playground)).toEqual(before);

  // With one instance, the panel says how to start two.
  await page.getByText("make run ARGS='--instances 2'").waitFor();
  await page.getByText("Instance 1: running, serves this connection").waitFor();
  expect(await page.getByRole("button", { name: "Kill instance 1" }).isDisabled()).toBe(true);

  for (const text of ["lose this", "repeat this"]) await setup.service.send(id, "chat", { text });
  await playground.message("repeat this").waitFor();
  await expect.poll(() => counts(playground)).toEqual({ ...before, received: 2, lost: 1, duplicates: 1 });
});

test("the sliders delay frames and drop the connection, and nothing is lost", async ({ expect }) => {
  await using playground = await setup.open();
  const { page } = playground;
  await playground.start();
  await playground.showTab("Resilience");
  const [latency, loss] = [page.getByRole("slider", { name: "Latency" }), page.getByRole("slider", { name: "Loss" })];
  await latency.fill("500");
  expect(await latency.getAttribute("aria-valuetext")).toBe("500 ms");
  const started = Date.now();
  for (const n of [1, 2, 3]) await playground.send(`slow ${n}`);
  await playground.message("slow 1").filter({ hasText: "acknowledged" }).waitFor();
  expect(Date.now() - started, "there and back").toBeGreaterThanOrEqual(1_000);
  await playground.message('You said "slow 3"').waitFor();

  await latency.fill("0");
  await page.evaluate(() => (Math.random = () => 0.005)); // every frame is lost at 1 %, and none at 0 %
  await loss.fill("1");
  await playground.send("dropped");
  await playground.waitForState("retrying");
  await loss.fill("0");
  await playground.message('You said "dropped"').waitFor();
  await playground.showTab("Timeline");
  await playground.timelineEvent("The simulated network lost a frame.").first().waitFor();
  const texts = await page.locator("#chat li:not(.you) p").allTextContents();
  expect(texts.filter((text) => text.startsWith("You said")).map((text) => /"(.*)"/.exec(text)![1])).toEqual(["slow 1", "slow 2", "slow 3", "dropped"]);
  await expect.poll(() => counts(playground)).toMatchObject({ sent: 4, acknowledged: 4, lost: 0, duplicates: 0 });
});

