import { expect, test } from "vitest";
import { sum } from "../src/rates.js";
import { Playground, Setup, startService } from "./browser.js";
import { Model } from "./model.js";

const setup = new Setup();

test("a metric is added up over its labels", () => {
  const exposition = '# TYPE a_total counter\na_total{type="chat",direction="to_ari"} 3\na_total{type="ping"} 1e+01\na_total_created 5\nb_a_total 7\n';
  expect([sum(exposition, "a_total"), sum(exposition, "b_a_total"), sum(exposition, "c")]).toEqual([13, 7, 0]);
});

test("waiting counts down, rates are shown, and a hang-up is not an error", async ({ expect }) => {
  await using model = new Model(); // which writes when the test has seen the page wait
  await using service = await startService(await model.start());
  await using playground = await Playground.open(setup.browser, service);
  const { page } = playground;
  await playground.start();
  await expect.poll(() => page.evaluate(() => document.activeElement!.id)).toBe("text"); // the message box
  await service.waitForBot(await playground.sessionId());
  await playground.send("tell me a story");
  const waiting = page.locator("#waiting");
  await waiting.filter({ hasText: /Waiting for the bot: [12]:\d\d until the request times out/ }).waitFor();
  const first = await waiting.textContent();
  await expect.poll(() => waiting.textContent()).not.toBe(first);
  await waiting.filter({ hasText: "Waiting for the bot" }).waitFor(); // still
  await expect.poll(() => model.asked).toBe(1);
  model.write("Once upon a time.", true);
  await playground.message("Once upon a time.").waitFor();
  await expect.poll(() => waiting.textContent()).toBe("");
  await playground.click("be silent");
  await playground.message("The bot did not answer in time.").waitFor();
  await expect.poll(() => waiting.textContent()).toBe("");
  await page.locator("#turn-list li").first().filter({ hasText: /^be silent part 2timed out/ }).waitFor({ state: "attached" });
  await page.locator("#rates").filter({ hasText: /^\d+ sessions? · \d+\.\d frames\/s · \d+\.\d callbacks\/s$/ }).waitFor();
  await playground.click("hang up");
  await playground.waitForState("Ended");
  expect([await page.locator("#state").getAttribute("data-state"), await page.getByRole("alert").isVisible()]).toEqual(["ended", false]);
});

test("everything on a phone is large enough to touch", async () => {
  await using playground = await setup.open({ viewport: { width: 390, height: 844 } });
  const { page } = playground;
  await playground.start();
  for (const tab of await page.getByRole("tab").allTextContents()) {
    await playground.showTab(tab);
    const small = await page.evaluate(() => [...document.querySelectorAll<HTMLElement>("button, select, input:not([type=radio], [type=file], [type=checkbox]), label:has([type=checkbox])")]
      .filter((control) => control.offsetWidth && control.getBoundingClientRect().height < 44).map(({ outerHTML }) => outerHTML));
    expect(small, tab).toEqual([]);
  }
  await playground.showTab("Talk");
  expect(await page.getByRole("button", { name: "Hang up", exact: true }).isVisible(), "a chat has no call").toBe(false);
  expect(await page.locator("#chat").evaluate((chat) => chat.clientHeight)).toBeGreaterThan(240);
  await page.locator("#waiting").evaluate((waiting) => (waiting.textContent = "Waiting for the bot"));
  expect(await page.locator("#phrases").evaluate(({ clientHeight, scrollHeight }) => scrollHeight - clientHeight)).toBe(0);
  await playground.click("call me slowly");
  await playground.message("Press up to four keys").waitFor();
  await playground.click("4"); // next to the conversation
  await playground.click("#");
  await playground.message("You pressed 4.").waitFor();
});
