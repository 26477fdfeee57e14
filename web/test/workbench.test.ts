import { test } from "vitest";
import { Setup } from "./browser.js";

const setup = new Setup();

test("a callback of the session is edited, checked and sent with a new credential", async ({ expect }) => {
  await using playground = await setup.open();
  const { page } = playground;
  const result = page.locator("#lint-result");
  const send = page.getByRole("button", { name: "Send callback" });
  await playground.start();
  await playground.send("transfer me abroad");
  await playground.message("A transfer was denied").waitFor();
  await playground.timelineEvent("answer from bot").last().click();
  await playground.click("Edit and send again");
  const body = page.getByRole("textbox", { name: "Body of the callback" });
  const sent = await body.inputValue();
  await result.getByRole("row", { name: "transfer denied target_not_allowed" }).waitFor();

  await body.fill(sent.replace("tel:+19005550100", "tel:+4930").replace('"conversation"', '"action": {}, "conversation"'));
  await result.getByRole("row", { name: "transfer allowed" }).waitFor();
  await result.getByText('/body/action "action" has no effect. Did you mean "actions"?').waitFor();
  await page.getByRole("combobox", { name: "Kind" }).selectOption("llm");
  await result.getByText("Rejected with status 400").waitFor();
  expect([await send.isDisabled(), await result.getByRole("listitem").count()]).toEqual([true, 1]);
  await page.getByRole("combobox", { name: "Kind" }).selectOption("bot");
  await body.fill("{\n");
  await result.getByText('The body is not valid JSON, line 2, column 1: expected "}" before the end of the text.').waitFor();
  await body.fill(sent.replace(await playground.sessionId(), "other"));
  await result.getByText("/conversation/identifier/id Must be ses_").waitFor();

  await playground.showTab("Policy");
  await page.getByRole("textbox", { name: "Gateway profile" }).fill('{"commandSources": ["bot"]}');
  await playground.showTab("Workbench");
  await body.fill(sent.replace("tel:+19005550100", "tel:+4930"));
  await result.getByRole("row", { name: "transfer allowed" }).waitFor();
  await page.getByRole("combobox", { name: "Policy" }).selectOption("as edited in Policy");
  await result.getByRole("row", { name: "transfer denied type_not_allowed" }).waitFor();
  await playground.screenshot("workbench");
  await send.click();
  await page.getByText("Receipt: 202 accepted").waitFor();
  await playground.message("The call is transferred to tel:+4930.").waitFor(); // the endpoint's policy decides
  await playground.waitForState("Ended");
  await expect.poll(() => send.isDisabled()).toBe(true);
  const reason = page.getByText("Start a session first.");
  await expect.poll(() => reason.filter({ visible: true }).count()).toBe(1);
  await playground.showTab("Resilience");
  await expect.poll(() => reason.filter({ visible: true }).count()).toBe(1);
  await playground.start();
  await expect.poll(() => reason.filter({ visible: true }).count()).toBe(0);
  playground.expected = /400/;
});

test("every template is valid, and has a callback of its kind sent", async ({ expect }) => {
  await using playground = await setup.open();
  const { page } = playground;
  await playground.start();
  await playground.showTab("Workbench");
  for (const name of await page.locator("#template option").allTextContents()) {
    await page.getByRole("combobox", { name: "Start from" }).selectOption(name);
    await expect.poll(() => page.getByRole("button", { name: "Send callback" }).isEnabled(), { message: name }).toBe(true);
    if (!/: (text|result)$/.test(name)) continue;
    await playground.click("Send callback");
    await page.getByText("Receipt: 202 accepted").waitFor();
  }
  await playground.message("Your order is on its way.").nth(1).waitFor(); // of the bot and the LLM
});

test("a callback can be sent while it is checked with another policy", async ({ expect }) => {
  await using playground = await setup.start();
  const { page } = playground;
  const send = page.getByRole("button", { name: "Send callback" });
  await playground.showTab("Workbench");
  await expect.poll(() => send.isEnabled()).toBe(true);
  let release = () => {};
  const released = new Promise<void>((done) => (release = done));
  await page.route("**/callbacks/lint", async (route) => {
    await released;
    await route.continue();
  });
  await playground.showTab("Policy");
  const check = page.waitForRequest("**/callbacks/lint");
  await page.getByRole("textbox", { name: "Gateway profile" }).fill("{}");
  await check;
  await playground.showTab("Workbench");
  expect(await send.isEnabled()).toBe(true);
  await send.click();
  await page.getByText("Receipt: 202 accepted").waitFor();
  release();
  await page.unrouteAll({ behavior: "wait" });
});

test("the policy simulator decides on commands and targets without saving", async ({ expect }) => {
  await using playground = await setup.open();
  const { page } = playground;
  await playground.showTab("Policy");
  const profile = page.getByRole("textbox", { name: "Gateway profile" });
  const target = page.getByRole("textbox", { name: "Transfer to" });
  const row = (name: string) => page.getByRole("row", { name }).first().waitFor();
  await row("hangup allowed");
  await row("transfer depends on the target: enter one above");
  expect(await page.locator("#policy-summary").textContent()).toMatch(/^\d+ of 13 allowed$/); // without transfer
  await row("set_barge_in denied type_not_allowed");
  expect(await page.getByRole("row").count()).toBe(15); // 14 commands
  await target.fill("+49 (30) 123");
  await row("transfer to +49 (30) 123 allowed");
  await target.fill("not a number");
  await row("transfer to not a number invalid");
  await row("hangup allowed");

  const saved = await profile.inputValue();
  await profile.fill(saved.replace('"type": "hangup",\n      "enabled": true', '"type": "hangup",\n      "enabled": false').replace("tel:+4930*", "tel:+49*").replace('"allowedTargets"', '"allowedTarget": [], "allowedTargets"'));
  await target.fill("tel:+4940123");
  await row("hangup denied type_disabled");
  await row("transfer to tel:+4940123 allowed");
  await page.getByText('/profile/commandPolicies/1/allowedTarget "allowedTarget" has no effect').waitFor();
  await profile.fill('{"commandPolicies": [{"type": "hang_up"}], "commandSources": [1]}');
  await page.getByText("/profile/commandPolicies/0/type").waitFor();
  expect(await page.locator("#policy-result li").count()).toBeGreaterThan(1);
  await playground.click("Reset");
  await page.getByRole("combobox", { name: "Commands of" }).selectOption("external_llm");
  await row("hangup allowed");
  await row("transfer to tel:+4940123 denied target_not_allowed");
  await page.reload();
  await playground.showTab("Policy");
  await row("hangup allowed"); // the endpoint is unchanged
  playground.expected = /400/;
});
