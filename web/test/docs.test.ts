import type { Page } from "playwright-core";
import { expect, test } from "vitest";
import { checkAccessible, openTab, Setup } from "./browser.js";

const setup = new Setup();

/** Opens the API reference. The returned function closes it and reports errors of the page. */
async function openReference(): Promise<[Page, () => Promise<void>]> {
  const page = await openTab(setup.browser, { viewport: { width: 1280, height: 900 } });
  const errors: string[] = [];
  page.on("console", (message) => message.type() === "error" && errors.push(message.text())); // includes violations of the Content-Security-Policy
  page.on("pageerror", (error) => errors.push(error.message));
  page.on("request", (request) => request.url().startsWith(setup.service.url) || errors.push(`request to another origin: ${request.url()}`));
  await page.goto(`${setup.service.url}/docs`);
  await page.locator(".operation").first().waitFor();
  const close = async () => {
    await page.context().close();
    expect(errors).toEqual([]);
  };
  return [page, close];
}

test("the API reference opens on the operations, and its example works as it stands", async ({ expect }) => {
  const [page, close] = await openReference();
  expect((await page.locator(".operation").first().boundingBox())!.y).toBeLessThan(600);
  const file = await (await fetch(`${setup.service.url}/openapi.yaml`)).text();
  expect(await page.locator(".operation").count()).toBe(file.match(/^ {6}operationId:/gm)?.length);
  expect(await page.locator(".operation summary", { hasText: /playground|docs/ }).count()).toBe(0);

  expect(await page.locator("header").innerText()).toContain("asyncapi.yaml (the frames of /ws/session and /ws/runtime)");

  const issueToken = page.locator("#createSessionToken");
  await issueToken.locator("summary").first().click();
  await page.waitForURL(/#createSessionToken$/); // when it has opened
  await issueToken.getByRole("button", { name: "Send" }).click(); // with the demo's API key and endpoint
  await issueToken.getByText(/^201/).last().waitFor();
  await issueToken.getByText('"sessionId"').waitFor();

  await page.getByRole("searchbox", { name: "Find" }).fill("createsessiontoken");
  expect(await page.locator(".operation:visible").count()).toBe(1);
  await page.reload(); // opens the same operation
  await issueToken.getByRole("heading", { name: "Responses" }).waitFor();
  await close();
});

test("the API reference keeps the credential for the session, and follows the theme", async ({ expect }) => {
  const [page, close] = await openReference();
  const credential = page.getByLabel("API key or console JWT");
  expect(await credential.inputValue()).toMatch(/^tk_/); // the demo's
  await credential.fill("tk_mine");
  await credential.blur();
  await page.evaluate(() => localStorage.setItem("theme", "dark"));
  await page.reload();
  await page.locator(".operation").first().waitFor();
  expect(await credential.inputValue()).toBe("tk_mine");
  expect(await page.evaluate(() => [document.documentElement.style.colorScheme, Object.keys(localStorage).join()])).toEqual(["dark", "theme"]);
  await close();
});

test("the API reference is accessible and fits in light and dark, and on a phone", async () => {
  const [page, close] = await openReference();
  await page.evaluate(() => {
    for (const details of document.querySelectorAll<HTMLDetailsElement & { fill: () => void }>(".about, #createSessionToken, #postBotResult, #schema-Endpoint")) {
      details.open = true;
      details.fill();
      for (const nested of details.querySelectorAll<typeof details>(".nested")) {
        nested.open = true;
        nested.fill();
      }
    }
  });
  for (const [name, width, colorScheme] of [["wide", 1280, "light"], ["dark", 1280, "dark"], ["phone", 375, "light"]] as const) {
    await page.emulateMedia({ colorScheme });
    await page.setViewportSize({ width, height: 900 });
    await checkAccessible(page);
    await page.locator("#createSessionToken").evaluate((operation) => operation.scrollIntoView());
    await page.screenshot({ path: `../test-artifacts/docs-${name}.png` });
  }
  await close();
});
