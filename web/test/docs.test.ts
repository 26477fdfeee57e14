import { expect, test } from "vitest";
import { launch, Service } from "./browser.js";

test("the API reference shows every operation, sends a request, and contacts only the service", async () => {
  await using service = await Service.start();
  const browser = await launch();
  try {
    const page = await browser.newPage();
    const errors: string[] = [];
    page.on("console", (message) => message.type() === "error" && errors.push(message.text())); // includes violations of the Content-Security-Policy
    page.on("pageerror", (error) => errors.push(error.message));
    page.on("request", (request) => /^(data|blob):/.test(request.url()) || request.url().startsWith(service.url) || errors.push(`request to another origin: ${request.url()}`));

    await page.goto(`${service.url}/docs`);
    const health = page.locator("#operations-Operations-getHealth");
    await health.locator(".opblock-summary-control").click();
    await health.locator(".try-out__btn").click();
    await health.locator(".execute").click();
    await health.locator(".live-responses-table .microlight, .live-responses-table .highlight-code").filter({ hasText: "uptimeSeconds" }).first().waitFor();

    const file = await (await fetch(`${service.url}/openapi.yaml`)).text();
    expect(await page.locator(".opblock").count()).toBe(file.match(/^ {6}operationId:/gm)?.length);
    expect(errors).toEqual([]);
  } finally {
    await browser.close();
  }
});
