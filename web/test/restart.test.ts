import { expect, test } from "vitest";
import { Playground, Setup, startService } from "./browser.js";

const setup = new Setup();

/** The texts of the conversation, without notes. */
const texts = (playground: Playground) => playground.page.locator("#chat li p").allTextContents();

test("an open page resumes after the server was stopped with Ctrl-C and started again", async () => {
  await using service = await startService();
  await using playground = await Playground.open(setup.browser, service);
  await playground.start();
  await playground.send("before");
  await playground.message('You said "before"').waitFor();
  await playground.send("out of order"); // the second answer is parked until the first one arrives
  await playground.message("out of order").filter({ hasText: "acknowledged" }).waitFor();

  await service.restart("SIGINT", async () => {
    await playground.waitForState("retrying");
    await playground.send("meanwhile");
  });
  await playground.page.evaluate(() => dispatchEvent(new Event("online"))); // do not wait for the next attempt
  await playground.message('You said "meanwhile"').waitFor();
  await playground.message("meanwhile").filter({ hasText: "acknowledged" }).waitFor();
  playground.errors.splice(0); // the browser reports failed connections
  await playground.message("Reconnected").waitFor();
  expect(await playground.message("messages are missing").count()).toBe(0);
  const answers = (await texts(playground)).filter((text) => /^(You said|This is)/.test(text)).map((text) => text.slice(0, 20));
  expect(answers).toEqual(['You said "before". S', "This is the first an", "This is the second a", 'You said "meanwhile"']);
});

test("a reloaded page resumes its session and shows the conversation", async () => {
  await using playground = await setup.open();
  await playground.start();
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
