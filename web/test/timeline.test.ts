import { readFileSync, writeFileSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import type { TimelineEvent } from "../src/api.js";
import { parseTrace, type Trace } from "../src/export.js";
import { orderByCause } from "../src/order.js";
import { type Playground, Setup } from "./browser.js";

const setup = new Setup();
let folder: string;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "telapi-traces-"));
});
afterAll(() => rm(folder, { recursive: true, force: true }));

/** Exports the timeline and returns the path of the file. */
async function exportTrace({ page }: Playground, form: "JSON" | "HTML"): Promise<string> {
  const download = page.waitForEvent("download");
  await page.getByRole("button", { name: "Trace", exact: true }).click();
  await page.getByRole("button", { name: `Export as ${form}` }).click();
  const path = join(folder, `${Math.random()}.${form.toLowerCase()}`);
  await (await download).saveAs(path);
  return path;
}

const rows = ({ page }: Playground) =>
  page.locator("#timeline li").evaluateAll((items) => items.map((item) => item.querySelector(".route")!.textContent + item.querySelector(".title")!.textContent!));

const describe = ({ lane, to, title }: TimelineEvent) => `${lane}${to ? ` to ${to}` : ""}: ${title}`;

/** What the bot says to each phrase, what the conversation shows if that is more, and further steps of the turn in their order. The next phrase would interrupt what is not played yet. */
const phrases: { say: string; replies: string[]; messages?: string[]; entries?: string[]; steps?: string[]; plays?: string }[] = [
  { say: "hello", replies: ["Hello! How are you?"] },
  { say: "help", replies: ["I understand:"] },
  { say: "fail", replies: ["The bot could not answer: "], entries: ["provider error: "] },
  { say: "speak", replies: ["This sentence is synthesized once"], steps: ["runtime to service: chat: This sentence", "service to runtime: speech", "runtime to browser: plays: This sentence"], plays: "plays: This sentence" },
  { say: "transfer me abroad", replies: ["I will try to transfer you abroad.", "A transfer was denied"], entries: ["bot message: ", "transfer denied: target_not_allowed"] },
  { say: "call me slowly", replies: ["Press up to four keys"], steps: ["service to runtime: command update_dtmf_config, immediate", "runtime: settings changed"] },
  {
    say: "out of order",
    replies: ["This is the first answer", "This is the second answer"],
    steps: [
      "runtime to bot: request to bot, part 1", "runtime to bot: request to bot, part 2", "bot to service: answer from bot, part 2", "service to bot: 202 parked",
      "bot to service: answer from bot, part 1", "service to runtime: bot message: This is the first", "service to runtime: bot message: This is the second",
    ],
  },
  { say: "be silent", replies: ["I will be silent"], messages: ["I will be silent", "The bot is still thinking.", "The bot did not answer in time."], steps: ["runtime: timer: comfort prompt", "runtime to service: chat: The bot is still thinking.", "runtime: bot_timeout", "runtime to service: chat: The bot did not answer", "service to browser: chat: The bot did not answer"] },
  {
    say: "pause chat",
    replies: ["Text chat is off for three seconds.", "Text chat is on again."],
    messages: ["The runtime disabled text chat.", "The runtime enabled text chat."],
    steps: ["service to runtime: command emit_event, in_order", "runtime to service: control: disable_text_chat", "bot to service: answer from bot, part 2", "runtime to service: control: enable_text_chat", "service to browser: control: enable_text_chat"],
  },
  { say: "transfer me", replies: ["I will transfer you now."], messages: ["I will transfer you now.", "The call is transferred to tel:+493012345678."], steps: ["service to runtime: command transfer, after_playback", "runtime to service: action: transfer", "service to runtime: ended: transferred", "browser: ended"] },
];

/** The orders that the rows of a turn have, whatever the clocks say. */
function chainsOf({ say, replies, entries = ["bot message: "], steps = [] }: (typeof phrases)[number]): string[][] {
  const sent = [`browser to service: chat: ${say}`, `service to runtime: chat: ${say}`];
  const asked = [...sent, "runtime to bot: request to bot, part 1", "bot to service: answer from bot, part 1", ...entries.map((entry) => `service to runtime: ${entry}`)];
  return [
    ...replies.map((reply) => [...asked.slice(0, 5), `runtime to service: chat: ${reply}`, `service to browser: chat: ${reply}`]),
    asked,
    [...sent, "service to browser: status: ack"],
    [...asked, "service to bot: 202 accepted"],
    ["runtime to bot: request to bot, part 1", "bot to runtime: 202 Accepted", "bot to service: answer from bot, part 1"],
    steps,
  ];
}

/** Returns the first row of a chain that is missing or too early. */
function firstViolation(rows: string[], { say }: (typeof phrases)[number], chain: string[]): string | undefined {
  const start = rows.indexOf(`browser to service: chat: ${say}`);
  let at = start - 1;
  return chain.find((row) => (at = rows.findIndex((candidate, index) => index > at && candidate.replace(/: (?:parked|released|allowed|denied|rejected) /, ": ").startsWith(row))) < 0);
}

test("the timeline is in the order of causes for every phrase, whatever the clocks say", async ({ expect }) => {
  await using playground = await setup.start();
  for (const { say, replies, messages = replies, plays } of phrases) {
    await playground.click(say);
    for (const reply of messages) await playground.message(reply).first().waitFor();
    if (plays) await playground.timelineEvent(plays).waitFor();
    if (say !== "call me slowly") continue;
    for (const key of ["4", "2", "#"]) await playground.click(key);
    await playground.message(/You pressed (4 )?2\./).waitFor(); // the runtime may have submitted the first digit after a while
  }
  await playground.waitForState("Ended");
  const missing = async () => {
    const shown = await rows(playground);
    return phrases.flatMap((phrase) => chainsOf(phrase).flatMap((chain) => firstViolation(shown, phrase, chain)?.concat(` of "${phrase.say}"`) ?? []));
  };
  await expect.poll(missing).toEqual([]);
  const parked = playground.page.locator("#timeline [data-badge=parked]");
  expect(await playground.timelineEvent("command transfer").first().locator("strong").textContent()).toBe("allowed");
  expect([await parked.count(), await playground.page.locator("#timeline [data-badge=released]").textContent()]).toEqual([1, expect.stringContaining("This is the second answer")]);
  const times = await playground.page.locator("#timeline time").allTextContents();
  const sortable = times.map((time) => (times[0]!.startsWith("23") ? time.replace(/^00/, "24") : time)); // after midnight
  expect(sortable).toEqual(sortable.toSorted());

  // The same events with other clocks, and in the order of their titles.
  const { events } = parseTrace(readFileSync(await exportTrace(playground, "JSON"), "utf8"));
  for (const skew of [{ page: -7_000, entries: 5_000, messages: -4_000, demo: 6_000 }, { page: 7_000, entries: -5_000, messages: 3_000, demo: -6_000 }, { page: 0, entries: -9_000, messages: 9_000, demo: 0 }]) {
    const skewed = events.map((event) => ({ ...event, at: event.at + skew[(event.source ?? "page").replace(/-.*/, "") as "page"] })).sort((a, b) => (a.title < b.title ? -1 : 1));
    const ordered = orderByCause(skewed.map((event) => ({ event, time: event.at })));
    const titles = ordered.filter(({ event }) => event.kind !== "mark").map(({ event }) => describe(event));
    expect(phrases.flatMap((phrase) => chainsOf(phrase).flatMap((chain) => firstViolation(titles, phrase, chain)?.concat(` of "${phrase.say}", clocks ${JSON.stringify(skew)}`) ?? []))).toEqual([]);
    const position = new Map(ordered.flatMap(({ event }, index) => (event.ids ?? []).map((id) => [id, index])));
    expect(ordered.filter(({ event }, index) => event.after?.some((id) => (position.get(id) ?? -1) > index)).map(({ event }) => event.title)).toEqual([]);
  }
});

test("a turn shows where its time goes, and its hops light up", async ({ expect }) => {
  await using playground = await setup.start();
  await playground.showTab("Turns");
  const lit = playground.page.locator("#flow [data-lit]");
  await lit.first().waitFor({ state: "detached" }); // those of the greeting
  await playground.page.evaluate(() => {
    const hops = new Set<string>(); // all that were lit, however shortly
    Object.assign(window, { litHops: () => [...hops].sort() });
    new MutationObserver((changes) => {
      for (const { target } of changes) if (target instanceof SVGElement && "lit" in target.dataset) hops.add(target.dataset.hop!);
    }).observe(document.getElementById("flow")!, { subtree: true, attributeFilter: ["data-lit"] });
  });
  await playground.click("out of order");
  await playground.message("This is the second answer").waitFor();
  const turns = playground.page.getByRole("list", { name: "Turns" }).getByRole("button");
  await playground.storedEvent("service to bot: callback202 accepted").waitFor({ state: "attached" }); // the last event
  await expect.poll(() => playground.page.evaluate("litHops()")).toEqual(["bot-runtime", "bot-service", "browser-service", "runtime-service"]);
  await lit.first().waitFor({ state: "detached" });
  await turns.last().filter({ hasText: /out of order.*bot \d+\.\d\d s, waiting/ }).waitFor();
  await turns.first().filter({ hasText: /out of order.*bot [\d.]+ m?s, waiting.*parked \d+\.\d\d s/ }).waitFor();
  expect(await playground.page.locator("#turn-summary").textContent()).toMatch(/^2 answered, p50 [\d.]+ m?s, p95 [\d.]+ m?s$/);
  expect(await turns.first().locator("rect").evaluateAll((parts) => parts.every((part) => Number(part.getAttribute("width")) > 0))).toBe(true);
  expect(await playground.page.getByRole("rowheader", { name: "runtime" }).getAttribute("title")).toMatch(/runtime's clock/);
  await playground.screenshot("turns");
  await turns.first().click();
  await playground.page.getByRole("region", { name: "chat: out of order" }).waitFor();
});

test("an answer through the webhook has a row for each step; a row shows its request, and copies it as curl without secrets", async ({ expect }) => {
  await using playground = await setup.start();
  await playground.click("hello");
  await playground.message("Hello! How are you?").waitFor();
  await playground.message("hello").filter({ hasText: "acknowledged" }).waitFor();
  for (const step of ["browser to service: frame", "service to runtime: frame", "runtime to bot: http", "bot to service: callback", "service to bot: callback", "service to browser: frame"]) {
    await playground.timelineEvent(step).first().waitFor();
  }
  const copy = async (row: string) => {
    await playground.timelineEvent(row).click();
    await playground.click("Copy as curl");
    await playground.page.getByRole("button", { name: "Copied" }).waitFor();
    return playground.copied();
  };
  expect(await copy("answer from bot")).toMatch(/^# The token of this callback is used up\. .*telapi callback issue --channel ses_\S+\ncurl -X POST 'http:\S+\/api\/v1\/webhooks\/bot\/\S+' -H 'Content-Type: application\/json' -H "token: \$CALLBACK_TOKEN" --data-raw '\{"conversation".*\}'$/);
  expect(await copy("POST /api/v1/sessions/token")).toMatch(/^# Set API_KEY to the key of the team\.\ncurl -X POST 'http:\S+\/api\/v1\/sessions\/token' -H "X-API-Key: \$API_KEY" .*"mode":"chat"\}'$/);
  await playground.timelineEvent("service to bot: callback").click();
  await playground.page.locator("#facts").filter({ hasText: /route.*service → bot.*request.*POST http.*status202latency[\d.]+ m?s.*X-Request-Id/ }).waitFor();
  expect(await playground.page.getByRole("button", { name: "Copy as curl" }).count()).toBe(0);
  await playground.timelineEvent("service to browser: http201").click();
  await playground.page.locator("#json").filter({ hasText: '"token": "[redacted]"' }).waitFor();
});

test("rows stay where they are while a mouse button is down", async ({ expect }) => {
  await using playground = await setup.start({ viewport: { width: 1440, height: 500 } });
  const { page } = playground;
  await playground.click("hello");
  await playground.timelineEvent("service to browser: framechat: Hello! How are you?").hover();
  await page.mouse.down();
  await setup.service.send(await playground.sessionId(), "chat", { text: "meanwhile" });
  await playground.message("meanwhile").waitFor();
  await page.locator("#pause").evaluate((pause: HTMLElement) => [pause.click(), pause.click()]); // both put the rows in order at once
  expect(await playground.storedEvent("service to browser: framechat: meanwhile").count()).toBe(0);
  await page.mouse.up();
  await page.getByRole("region", { name: "chat: Hello! How are you?" }).waitFor();
  await playground.timelineEvent("service to browser: framechat: meanwhile").waitFor();
});

test("new events are announced to a reader who has scrolled up, and an empty filter is explained", async ({ expect }) => {
  await using playground = await setup.start({ viewport: { width: 1440, height: 600 } });
  await playground.click("hello");
  await playground.timelineEvent("service to browser: framechat: Hello! How are you?").waitFor();
  const newer = playground.page.getByRole("button", { name: /^\d+ new events?$/ });
  expect(await newer.count()).toBe(0);
  const list = playground.page.locator("#timeline");
  await list.evaluate((element) => (element.scrollTop = 0));
  await playground.click("help");
  await newer.waitFor();
  expect(await list.evaluate((element) => element.scrollTop)).toBe(0);
  await newer.click();
  await newer.waitFor({ state: "hidden" });
  expect(await list.evaluate((element) => element.scrollHeight - element.scrollTop - element.clientHeight)).toBeLessThan(40);

  await playground.page.getByRole("searchbox", { name: "Text" }).fill("no such event");
  await playground.page.getByText("No events match the filter.").waitFor();
  await playground.click("Clear filter");
  await playground.timelineEvent("chat: hello").first().waitFor();
  expect(await playground.page.getByText("No events match the filter.").isVisible()).toBe(false);
});

test("a trace is exported without secrets, escaped, and can be opened again", async ({ expect }) => {
  await using playground = await setup.start();
  const hostile = `</script><img src=x onerror="document.title='x'"> +493012345678`;
  await playground.send(hostile);
  await playground.timelineEvent(/service to browser: framechat: You said/).waitFor();
  const json = await exportTrace(playground, "JSON");
  const text = readFileSync(json, "utf8");
  expect(text).not.toMatch(/cbt_|tk_\w+_\w|eyJ|493012345678/);
  expect(text).toContain("********5678");

  const page = await playground.page.context().newPage();
  await page.goto(`file://${await exportTrace(playground, "HTML")}`);
  expect(await page.locator("script, img").count()).toBe(0);
  expect(await page.locator("summary", { hasText: "</script><img src=x" }).count()).toBeGreaterThan(1);
  expect(await page.title()).toContain(await playground.sessionId());
  await page.close();

  const before = (await rows(playground)).length;
  await playground.page.getByLabel("Trace", { exact: true }).setInputFiles(json);
  await playground.page.getByText(`Trace of session ${await playground.sessionId()}`).waitFor();
  const reopened = await rows(playground);
  expect(reopened.length).toBe((JSON.parse(text) as Trace).events.filter(({ kind }) => kind !== "mark").length);
  expect(reopened.join()).toContain("</script><img src=x");
  await playground.click("hello"); // is kept until the trace is closed
  await playground.message("Hello! How are you?").waitFor();
  expect(await rows(playground)).toEqual(reopened);
  await playground.click("Back to the session");
  await playground.timelineEvent("chat: Hello! How are you?").first().waitFor();
  expect((await rows(playground)).length).toBeGreaterThan(before);

  const dropped = await playground.page.evaluateHandle((text) => {
    const data = new DataTransfer();
    data.items.add(new File([text], "trace.json"));
    return data;
  }, text);
  await playground.page.dispatchEvent("#timeline", "dragover", { dataTransfer: dropped });
  await playground.page.dispatchEvent("#timeline", "drop", { dataTransfer: dropped });
  await playground.page.getByText("Trace of session").waitFor();
  writeFileSync(json, "{}");
  await playground.page.getByLabel("Trace", { exact: true }).setInputFiles(json);
  await playground.page.getByRole("alert").filter({ hasText: "not a trace of telapi" }).waitFor();
});

test("lanes have names and rows have times in wide and narrow windows", async () => {
  await using playground = await setup.start();
  const { page } = playground;
  for (const [width, height] of [[1300, 900], [390, 844]] as const) {
    await page.setViewportSize({ width, height });
    await playground.showTab("Timeline");
    await playground.timelineEvent("browser connected").waitFor();
    expect(await page.locator(".lanes span").evaluateAll((spans) => spans.filter((span) => span.scrollWidth > span.clientWidth || parseFloat(getComputedStyle(span).fontSize) < 10).length)).toBe(0);
    expect(await page.locator("#timeline time").first().isVisible()).toBe(true);
    await playground.screenshot(`timeline-${width}`);
  }
});
