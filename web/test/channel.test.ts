import { expect, test } from "vitest";
import { Setup } from "./browser.js";

const setup = new Setup();

test("a channel that a runtime has opened shows its lanes", async () => {
  const { service } = setup;
  await using playground = await setup.open();
  const { page } = playground;
  const { teamId, endpoints } = (await (await fetch(`${service.url}/playground/config.json`)).json()) as { teamId: string; endpoints: { id: string }[] };
  await service.telapi("channel", "open", "phone-1", "--team", teamId, "--endpoint", endpoints[0]!.id);
  await service.send("phone-1", "chat", { text: "Good day", from: "bot" });
  await page.goto(`${service.url}/playground/?channel=phone-1`);
  await page.getByText("Watching a channel").waitFor();
  await playground.timelineEvent("chat: Good day").waitFor();
  await service.send("phone-1", "status", { event: "playback" });
  await playground.timelineEvent("status: playback").waitFor();
  await service.telapi("channel", "end", "phone-1", "--reason", "caller_hangup");
  await playground.timelineEvent("ended: caller_hangup").waitFor();
  expect(playground.errors).toEqual([]);
});
