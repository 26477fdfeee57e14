import type { Page } from "playwright-core";
import { expect, test } from "vitest";
import { openTab, Setup } from "./browser.js";

const setup = new Setup();

/** Opens the API reference. The returned function closes it and reports errors of the page. */
async function openReference(options = {}): Promise<[Page, () => Promise<void>]> {
  const page = await openTab(setup.browser, { viewport: { width: 1280, height: 900 }, ...options });
  const errors: string[] = [];
  page.on("console", (message) => message.type() === "error" && errors.push(message.text())); // includes violations of the Content-Security-Policy
  page.on("pageerror", (error) => errors.push(error.message));
  page.on("request", (request) => /^(data|blob):/.test(request.url()) || request.url().startsWith(setup.service.url) || errors.push(`request to another origin: ${request.url()}`));
  await page.goto(`${setup.service.url}/docs`);
  await page.locator(".opblock").first().waitFor();
  const close = async () => {
    await page.context().close();
    expect(errors).toEqual([]);
  };
  return [page, close];
}

test("the API reference opens on the operations, and its example works as it stands", async () => {
  const [page, close] = await openReference();
  expect((await page.locator(".opblock").first().boundingBox())!.y).toBeLessThan(600);
  const file = await (await fetch(`${setup.service.url}/openapi.yaml`)).text();
  expect(await page.locator(".opblock").count()).toBe(file.match(/^ {6}operationId:/gm)?.length);
  expect(await page.locator(".opblock-summary-path", { hasText: /playground|docs/ }).count()).toBe(0);

  const issueToken = page.locator("#operations-Sessions-createSessionToken");
  await issueToken.locator(".opblock-summary-control").click();
  await issueToken.locator(".try-out__btn").click();
  expect(await issueToken.locator("tr[data-param-in=header] input").evaluateAll((inputs) => inputs.map((input) => (input as HTMLInputElement).value))).toEqual(["", ""]);
  await issueToken.locator(".execute").click(); // with the demo's API key and endpoint
  await issueToken.locator(".live-responses-table .response-col_status", { hasText: "201" }).waitFor();
  await close();
});

test("the API reference asks for the API key first, keeps it for the session, and follows the theme", async ({ expect }) => {
  const [page, close] = await openReference({ colorScheme: "dark" });
  const dark = () => page.evaluate(() => document.documentElement.classList.contains("dark-mode"));
  const dialog = page.locator(".modal-ux");
  expect(await dark()).toBe(true);
  await page.locator(".btn.authorize").click();
  await dialog.getByRole("button", { name: "Remove authorization" }).click(); // the demo's key
  expect(await dialog.locator("h4").first().textContent()).toContain("ApiKey");
  await dialog.getByRole("textbox").first().fill("tk_mine");
  await dialog.getByRole("button", { name: "Apply credentials" }).first().click();
  await page.evaluate(() => localStorage.setItem("theme", "light"));
  await page.reload();
  await page.locator(".btn.authorize").click();
  await dialog.getByRole("button", { name: "Remove authorization" }).waitFor();
  expect(await dialog.locator("h4").first().evaluate((title) => title.getBoundingClientRect().top)).toBeGreaterThan(0); // not scrolled to the last credential
  expect([await dark(), await page.evaluate(() => Object.keys(localStorage).join())]).toEqual([false, "theme"]);
  await close();
});
