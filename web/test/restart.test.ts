import { expect, test } from "vitest";
import { Playground, Setup, startService } from "./browser.js";

const setup = new Setup();

/** The texts of the conversation, without notes. */
const texts = (playground: Playground) => playground.page.locator("#chat li p").allTextContents();

test("a reloaded page resumes its session and shows the conversation", async () => {
  await using playground = await setup.start();
  await playground.send("before");
  await playground.message('You said "before"').waitFor();
  const [id, before] = [await playground.sessionId(), await texts(playground)];
  await playground.disturb("Cut connection");
  await playground.send("not sent yet");
  await setup.service.send(id, "chat", { text: "not received yet" });

  await playground.page.reload();
  await playground.message('You said "not sent yet"').waitFor();
  await playground.message("not sent yet").filter({ hasText: "acknowledged" }).waitFor();
  expect(await playground.sessionId()).toBe(id);
  const after = await texts(playground);
  expect(after.slice(0, before.length)).toEqual(before);
  expect(after.slice(before.length).sort()).toEqual(['You said "not sent yet". Say help to hear what else I understand.', "not received yet", "not sent yet"].sort());

  await playground.click("Disconnect");
  await playground.waitForState("Ended");
  await playground.page.reload();
  await playground.waitForState("Not connected");
});

/** How many seconds were left in each countdown that the page has shown, at its end. */
const countdowns = ({ page }: Playground) => page.evaluate<number[]>("countdowns");

test("after a restart, the page reconnects before its countdown ends, and shows the instances that there are now", async ({ expect }) => {
  await using service = await startService();
  await using playground = await Playground.open(setup.browser, service);
  const { page } = playground;
  await playground.start();
  await playground.showTab("Resilience");
  await page.getByText("Instance 1: running").waitFor();
  await page.evaluate(() => {
    const ended: number[] = [];
    let left: number | undefined;
    new MutationObserver(() => {
      const [, seconds] = / in (\d+) s/.exec(document.getElementById("state")!.textContent!) ?? [];
      if (left !== undefined && seconds === undefined) ended.push(left);
      left = seconds === undefined ? undefined : Number(seconds);
    }).observe(document.getElementById("state")!, { childList: true, subtree: true, characterData: true });
    Object.assign(window, { countdowns: ended });
    Math.random = () => 30; // the SDK waits for minutes
  });
  await service.restart("SIGKILL", async () => {
    await page.getByRole("button", { name: "Retry now" }).click(); // in vain
    await page.locator("#state").filter({ hasText: /in \d\d+ s/ }).waitFor();
    await playground.checkAccessible("retrying");
  }, ["--instances", "2"]);
  await playground.waitForState("Connected");
  expect((await countdowns(playground)).at(-1)).toBeGreaterThan(1);
  await page.getByText("Instance 2: running").waitFor();
  expect(await page.getByText("Only one instance is running").isVisible()).toBe(false);
  await playground.send("hello");
  await playground.message("Hello! How are you?").waitFor();
  await page.locator("#rates").filter({ hasText: /^1 session · / }).waitFor();
  playground.expected = /./; // errors of the missing service
});
