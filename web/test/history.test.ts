import { mkdtempSync, readFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "vitest";
import { parseTrace } from "../src/export.js";
import { Setup } from "./browser.js";

const setup = new Setup();

test("earlier sessions stay in a list, and a link opens one event", async ({ expect }) => {
  await using playground = await setup.start();
  const { page } = playground;
  const id = await playground.sessionId();
  await playground.send("remember this");
  await playground.message('You said "remember this"').waitFor();
  await playground.timelineEvent("answer from bot").click();
  await playground.click("Copy link");
  await page.getByRole("button", { name: "Copied" }).waitFor();
  const link = await playground.copied();
  await playground.click("Disconnect");
  await playground.waitForState("Ended");
  await playground.showTab("History");
  const list = page.getByRole("list", { name: "Earlier sessions" });
  await list.getByText(id).waitFor();
  await playground.click("Chat"); // another one
  await playground.message("Hello, this is the demo bot").waitFor();

  await page.reload();
  await playground.showTab("History");
  await expect.poll(() => list.getByRole("listitem").count()).toBe(2); // the list stays the same from now on
  await page.getByRole("searchbox", { name: "Text" }).fill("remember this");
  await list.getByText("remember this").waitFor();
  await expect.poll(() => list.getByRole("listitem").count()).toBe(1);
  await playground.checkAccessible("history");
  const [file] = await Promise.all([page.waitForEvent("download"), list.getByRole("button", { name: /^Export/ }).click()]);
  const path = join(mkdtempSync(join(tmpdir(), "telapi-history-")), "trace.json");
  await file.saveAs(path);
  const trace = parseTrace(readFileSync(path, "utf8"));
  expect(trace.sessionId).toBe(id);
  await list.getByRole("button", { name: /^Open/ }).click();
  await page.getByText(`Trace of session ${id}`).waitFor();
  await playground.timelineEvent("chat: remember this").first().waitFor();

  await page.goto(`${setup.service.url}/docs/`); // so that the link loads the page
  await page.goto(link);
  await page.getByRole("region", { name: "answer from bot" }).waitFor();
  await playground.showTab("History");
  await expect.poll(() => list.getByRole("listitem").count()).toBe(2);
  await page.getByRole("searchbox", { name: "Text" }).fill("remember this");
  await list.getByRole("button", { name: /^Delete/ }).click();
  await expect.poll(() => list.getByRole("listitem").count()).toBe(0);
});

test("a reload keeps the rows of the page", async ({ expect }) => {
  await using playground = await setup.start();
  await playground.send("hello");
  await playground.message("Hello! How are you?").waitFor();
  await playground.message("hello").filter({ hasText: "acknowledged" }).waitFor(); // or it is sent again
  await playground.timelineEvent("POST /api/v1/sessions/token").waitFor();
  await playground.page.reload();
  await playground.timelineEvent("POST /api/v1/sessions/token").waitFor();
  await playground.timelineEvent("browser to service: framechat: hello").waitFor();
  expect(await playground.timelineEvent("browser to service: framechat: hello").count()).toBe(1);
});
