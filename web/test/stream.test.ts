import { execFile } from "node:child_process";
import { promisify } from "node:util";
import { test } from "vitest";
import { Playground, Setup, startService } from "./browser.js";
import { Model } from "./model.js";
import { Voice } from "./voice.js";

const setup = new Setup();

test("a written answer appears word by word, in one message and one row of the timeline", async ({ expect }) => {
  await using model = new Model();
  await using service = await startService(await model.start());
  await using playground = await Playground.open(setup.browser, service);
  const { page } = playground;
  await playground.start();
  await playground.send("tell me a story");
  await expect.poll(() => model.asked).toBe(1);
  const shows = (text: string) => playground.message(`bot${text}writing…`).waitFor();
  let said = "";
  for (const word of ["There", " was a **ki"]) {
    model.write(word);
    await shows((said += word.replace("**", "")));
  }
  await page.reload(); // in the middle
  await shows("There was a ki");
  model.write("ng**. He");
  await shows("There was a king. He");
  model.write(" had three sons. The end.", true);
  await playground.message("botThere was a king. He had three sons. The end.").filter({ hasNotText: "writing" }).waitFor();
  expect(await playground.message("king").count()).toBe(1);
  for (const row of [/bot message: .*The end\. \(4 parts\)/, /runtime to service: framechat: .*The end\. \(5 parts\)/, /service to browser: framechat: .*The end\. \(5 parts\)/]) await playground.timelineEvent(row).waitFor();
  expect(await playground.timelineEvent(/: There/).count()).toBe(3);
  await playground.timelineEvent("bot message: There").click();
  await page.locator("#facts").filter({ hasText: /parts4, in [\d.]+ m?s; this is the newest/ }).waitFor();
  await playground.click("Close the inspector");
  await playground.showTab("Turns");
  const turn = page.getByRole("list", { name: "Turns", exact: true }).getByRole("button", { name: /tell me a story first text [\d.]+ m?s.*stream [\d.]+ m?s/ });
  await turn.waitFor();
  await playground.checkAccessible("stream-turns");
});

test("a spoken answer is heard while the model still writes", async ({ expect }) => {
  await using model = new Model("tell me a story");
  await using service = await startService(await model.start());
  await using playground = await Playground.open(setup.browser, service);
  const { page } = playground;
  const voice = await Voice.replaceMicrophone(page);
  await playground.chooseMode("audio");
  await playground.click("Call");
  await page.locator("#call-state").filter({ hasText: "In a call" }).waitFor();
  await voice.say(playground);
  await expect.poll(() => model.asked).toBe(1);
  model.write("There was a king. He");
  await playground.timelineEvent("plays: There was a king.").waitFor();
  await playground.message("There was a king.").filter({ hasText: "writing…" }).waitFor();
  await playground.screenshot("stream-writing");
  model.write(" had three sons.", true);
  await playground.message("There was a king. He had three sons.").filter({ hasText: "spoken" }).waitFor();
  await playground.timelineEvent("plays: He had three sons.").waitFor();
  await playground.timelineEvent("played").nth(1).waitFor();
  await playground.showTab("Turns");
  const turn = page.getByRole("list", { name: "Spoken turns" }).getByRole("button", { name: /tell me a story.*request [\d.]+ m?s, text [\d.]+ m?s, audio [\d.]+ m?s, playback/ });
  await turn.waitFor();
  await page.locator("#voice-summary").filter({ hasText: /^1 answered, p50 [\d.]+ m?s, p95/ }).waitFor();
  await playground.screenshot("stream-spoken");
});

test("the picture of the README shows a call, its answers, and why one of them waits", async ({ expect }) => {
  await using model = new Model("Where is my order?");
  await using service = await startService(await model.start());
  await using playground = await Playground.open(setup.browser, service, { viewport: { width: 1360, height: 940 }, deviceScaleFactor: 1.25 });
  const { page } = playground;
  const answer = async (count: number, ...texts: string[]) => {
    await expect.poll(() => model.asked).toBe(count);
    for (const [index, text] of texts.entries()) model.write(text, index === texts.length - 1);
  };
  const voice = await Voice.replaceMicrophone(page);
  await playground.click("Call");
  await page.locator("#call-state").filter({ hasText: "In a call" }).waitFor();
  await service.waitForBot(await playground.sessionId());
  await voice.say(playground);
  await answer(1, "It left our warehouse today. It ", "arrives tomorrow.");
  await playground.timelineEvent("plays: It arrives tomorrow.").waitFor();
  await playground.timelineEvent("played").nth(1).waitFor();
  await promisify(execFile)(service.program, ["callback", "issue", "--channel", await playground.sessionId()], { env: service.env });
  await playground.send("And the invoice?");
  await answer(2, "The invoice is in the parcel.");
  await page.getByText(/is answered, waits for work item/).waitFor();
  await playground.timelineEvent("202 parked").waitFor();
  await playground.screenshot("picture");
});
