import { test } from "vitest";
import { Playground, Setup, startService } from "./browser.js";
import type { Service } from "./service.js";

const setup = new Setup();

/** A page of another machine does not get the key of the demo. */
const remote = { extraHTTPHeaders: { "X-Forwarded-For": "192.0.2.1" } };

/** Sends a request of the administration with the key of the demo. */
async function admin(service: Service, method: string, path: string, body?: object, key?: string): Promise<{ status: number; data: any }> {
  const { apiKey } = (await (await fetch(`${service.url}/playground/config.json`)).json()) as { apiKey: string };
  const response = await fetch(`${service.url}/api/v1/admin/${path}`, { method, headers: { "X-API-Key": key ?? apiKey, "Content-Type": "application/json" }, ...(body ? { body: JSON.stringify(body) } : {}) });
  return { status: response.status, data: response.status === 204 ? undefined : await response.json() };
}

/** The administration in a page. */
async function open(playground: Playground) {
  const { page } = playground;
  await playground.showTab("Admin");
  const dialog = page.getByRole("dialog");
  return {
    dialog,
    /** Waits for the table that was requested last, which replaces the one that is shown. */
    loaded: () => page.locator("#admin-content[aria-busy=false]").waitFor(),
    row: (name: string | RegExp) => page.locator("#admin-table tbody tr").filter({ hasText: name }),
    section: async (name: string) => {
      await page.getByRole("navigation", { name: "Administration" }).getByRole("button", { name, exact: true }).click();
      await page.getByRole("table", { name, includeHidden: true }).waitFor();
    },
    submit: async (name: string) => {
      await dialog.getByRole("button", { name, exact: true }).click();
      await dialog.waitFor({ state: "hidden" });
    },
  };
}

test("teams, keys, endpoints and their policy are managed, and every issue is named", async ({ expect }) => {
  await using service = await startService();
  await using playground = await Playground.open(setup.browser, service);
  const { page } = playground;
  const { dialog, loaded, row, section, submit } = await open(playground);
  await section("Teams");
  await playground.click("New team");
  await dialog.getByLabel("Name").fill("x".repeat(101));
  await dialog.getByLabel("API requests per day").fill("-5");
  await dialog.getByRole("button", { name: "Create" }).click();
  await dialog.getByRole("listitem").filter({ hasText: "/name" }).waitFor();
  await dialog.getByRole("listitem").filter({ hasText: "/dailyQuota" }).waitFor();
  expect(await dialog.locator("[aria-invalid]").count()).toBe(2);
  await playground.checkAccessible("admin-issues");
  await dialog.getByLabel("Name").fill("Acme");
  await dialog.getByLabel("API requests per day").fill("70000");
  await submit("Create");
  await row("Acme").getByText("of 70,000").waitFor();
  await page.getByRole("button", { name: "Edit Acme" }).click();
  await dialog.getByLabel("API requests per day").fill("");
  await submit("Save");
  await row("Acme").getByText("of 50,000").waitFor(); // the default
  await playground.checkAccessible("admin-teams");

  await page.getByRole("button", { name: "Open Acme" }).click();
  await page.getByRole("table", { name: "Endpoints" }).waitFor();
  await expect.poll(() => page.locator("#admin-count").textContent()).toBe("0 rows");
  await playground.click("New endpoint");
  await dialog.getByLabel("Name").fill("Support line");
  await dialog.getByLabel("audio").check();
  await dialog.getByLabel("Origins, one per line").fill("https://shop.example\nnot an origin");
  await dialog.getByRole("button", { name: "Create" }).click();
  await dialog.getByRole("listitem").filter({ hasText: "/origins/1" }).waitFor();
  await dialog.getByLabel("Origins, one per line").fill("https://shop.example");
  await submit("Create");
  await row("Support line").getByText("audio, chat").waitFor();
  await page.getByRole("button", { name: "Policy Support line" }).click();
  await page.getByText("0 of 14 allowed").waitFor();
  const profile = page.getByRole("textbox", { name: "Gateway profile" });
  await profile.fill('{"commandSources": ["bot"], "commandPolicies": [{"type": "hangup", "enabled": true}]}');
  await page.getByText("1 of 14 allowed").waitFor();
  await playground.click("Save");
  await page.getByText(/Saved at .* Open conversations keep the old profile\./).waitFor();
  const [endpoint] = (await admin(service, "GET", `teams/${await page.locator("#admin-team").inputValue()}/endpoints`)).data.data;
  expect(endpoint).toMatchObject({ name: "Support line", modes: ["audio", "chat"], origins: ["https://shop.example"], gatewayProfile: { commandSources: ["bot"], commandPolicies: [{ type: "hangup", enabled: true }] } });

  // Someone else changes the endpoint meanwhile.
  await admin(service, "PUT", `endpoints/${endpoint.id}`, { ...endpoint, name: "Hotline" });
  await profile.fill('{"commandSources": ["bot"]}');
  await playground.click("Save");
  await page.getByText("It was changed since you read it").waitFor();
  await playground.click("Reset");
  await page.locator("#policy-endpoint").filter({ hasText: "Hotline" }).waitFor();
  await profile.fill('{"commandSources": [1], "commandPolicies": [{"type": "hang_up"}]}');
  await playground.click("Save");
  await page.getByRole("alert").getByText("/gatewayProfile/commandSources/0").waitFor();
  await playground.showTab("Admin");
  await playground.click("Refresh");
  await loaded();
  await page.getByRole("button", { name: "Delete Hotline" }).click();
  await submit("Delete");
  await row("Hotline").waitFor({ state: "detached" });
  playground.expected = /status of 4/; // the rejected requests
});

test("a new key is shown once, and can be revoked", async ({ expect }) => {
  await using service = await startService();
  await using playground = await Playground.open(setup.browser, service);
  const { page } = playground;
  const { dialog, row, section, submit } = await open(playground);
  await section("Keys");
  const team = await page.locator("#admin-team").inputValue();
  await playground.click("New key");
  await dialog.getByLabel("Name").fill("backend");
  await dialog.getByLabel("MANAGE_TEAM").check();
  await dialog.getByLabel("Expires").fill("2999-12-31T12:00");
  await dialog.getByRole("button", { name: "Create" }).click();
  await dialog.getByText("This is the only copy of the key.").waitFor();
  await playground.checkAccessible("admin-secret");
  await playground.click("Copy key");
  await page.getByRole("button", { name: "Copied" }).waitFor();
  const secret = await playground.copied();
  expect((await admin(service, "GET", `teams/${team}`, undefined, secret)).status).toBe(200);
  const left = await dialog.getByRole("button", { name: "Close" }).evaluate((button: HTMLButtonElement) => {
    button.click();
    return document.documentElement.outerHTML;
  });
  expect(left).not.toContain(secret); // at once
  await dialog.waitFor({ state: "hidden" });
  await row("backend").getByText("2999-12-31 12:00:00").waitFor();
  await page.getByRole("button", { name: "Revoke backend" }).click();
  await submit("Revoke");
  await row("backend").getByText("revoked").waitFor();
  expect(await row("backend").getByRole("button").count()).toBe(0);
  await expect.poll(async () => (await admin(service, "GET", `teams/${team}`, undefined, secret)).status).toBe(401);
});

test("a session is ended, limits are changed, and the audit log lists it", async ({ expect }) => {
  await using service = await startService();
  await using playground = await Playground.open(setup.browser, service, { viewport: { width: 390, height: 844 } });
  const { page } = playground;
  await playground.click("Chat");
  await playground.message("Hello, this is the demo bot").waitFor();
  const id = await playground.sessionId();
  const { dialog, loaded, row, section, submit } = await open(playground);
  await section("Sessions");
  await page.getByRole("combobox", { name: "State" }).selectOption("connected");
  await loaded();
  await row(id).waitFor();
  await playground.checkAccessible("admin-sessions-phone");
  await page.getByRole("button", { name: `End ${id}` }).click();
  await submit("End session");
  await playground.waitForState("Ended");
  await row(id).waitFor({ state: "detached" });
  await page.getByRole("combobox", { name: "State" }).selectOption("revoked");
  await loaded();
  await row(id).waitFor();
  expect(await row(id).getByRole("button").count()).toBe(0);

  await section("Limits");
  await page.getByRole("button", { name: "Edit webhook" }).click();
  await dialog.getByLabel("Requests").fill("0");
  await dialog.getByLabel("Window in ms").fill("1");
  await dialog.getByRole("button", { name: "Save" }).click();
  await dialog.getByRole("listitem").filter({ hasText: "/tiers/webhook/max" }).waitFor();
  await dialog.getByRole("listitem").filter({ hasText: "/tiers/webhook/windowMs" }).waitFor();
  await dialog.getByLabel("Requests").fill("7000");
  await dialog.getByLabel("Window in ms").fill("30000");
  await submit("Save");
  await row("webhook").getByText("7,000").waitFor();
  expect((await admin(service, "GET", "limits")).data.tiers.webhook).toEqual({ max: 7000, windowMs: 30000 });
  await playground.checkAccessible("admin-limits-phone");

  await section("Audit");
  await row("session.revoke").getByText(id).waitFor();
  expect(await row("limits.update").count()).toBe(0); // they belong to no team
  await page.getByRole("checkbox", { name: "All teams" }).check();
  await row("limits.update").getByText("/webhook/max: 6000 → 7000").waitFor();
  await playground.checkAccessible("admin-audit-phone");
  await section("Endpoints");
  await playground.click("Usage");
  await page.getByRole("tab", { name: "Usage", selected: true }).waitFor();
  playground.expected = /status of 4/; // the rejected request
});

test("a key of one team manages this team only, and the page forgets it", async ({ expect }) => {
  await using service = await startService();
  const own = (await admin(service, "POST", "teams", { name: "Acme" })).data.id as string;
  const newKey = async (...scopes: string[]) => (await admin(service, "POST", `teams/${own}/keys`, { name: "k", scopes })).data.key as string;
  const key = await newKey("MANAGE_TEAM");
  await using playground = await Playground.open(setup.browser, service, remote);
  const { page } = playground;
  const { dialog, section } = await open(playground);
  const enter = async (value: string) => {
    await page.getByLabel("Key with scope MANAGE_TEAM or MANAGE_PLATFORM").fill(value);
    await page.keyboard.press("Enter");
  };
  await playground.checkAccessible("admin-key");
  await enter(await newKey("READ_TEAM_APPS"));
  await page.getByRole("alert").filter({ hasText: "requires the scope MANAGE_TEAM" }).waitFor();
  await enter("tk_nothing");
  await page.getByRole("alert").filter({ hasText: "UNAUTHORIZED" }).waitFor();
  await enter(key);
  await page.getByText("This key manages its team.").waitFor();
  expect(await page.getByRole("navigation", { name: "Administration" }).getByRole("button").allTextContents()).toEqual(["Endpoints", "Keys", "Sessions", "Teams"]);
  expect(await page.locator("#admin-team option").allTextContents()).toEqual(["Acme"]);
  await section("Teams");
  expect(await page.locator("#tab-admin").getByRole("button", { name: /New|Edit|Open/ }).count()).toBe(0);
  await section("Sessions");
  expect(await page.getByRole("checkbox", { name: "All teams" }).count()).toBe(0);
  await section("Keys");
  await playground.click("New key");
  expect(await dialog.getByRole("checkbox").evaluateAll((boxes) => boxes.map((box) => (box as HTMLInputElement).value))).toEqual(["CREATE_CALL_TOKEN", "READ_TEAM_APPS", "READ_TEAM_USAGE", "CREATE_SPEECH", "RUN_CALLS", "MANAGE_TEAM"]);
  await page.keyboard.press("Escape");
  await dialog.waitFor({ state: "hidden" });

  await admin(service, "POST", `teams/${own}/endpoints`, { name: "Support line", modes: ["chat"] });
  await section("Endpoints");
  await page.getByRole("button", { name: "Policy Support line" }).click();
  await page.getByText("The commands are unknown, because the key lacks the scope READ_TEAM_APPS.").waitFor();
  await page.getByRole("textbox", { name: "Gateway profile" }).fill('{"commandSources": ["bot"], "commandPolicies": [{"type": "transfer", "enabled": true, "allowedTargets": ["tel:+49*"]}]}');
  await page.getByRole("textbox", { name: "Transfer to" }).fill("tel:+4930");
  await page.getByRole("row", { name: "transfer to tel:+4930 allowed" }).waitFor();
  await playground.click("Save");
  await page.getByText("Saved at").waitFor();
  await playground.showTab("Admin");

  const traces = () => page.evaluate(() => JSON.stringify([location.href, { ...localStorage }, { ...sessionStorage }, document.documentElement.outerHTML]));
  expect(await traces()).not.toContain(key);
  await playground.click("Forget key");
  await page.getByLabel("Key with scope MANAGE_TEAM or MANAGE_PLATFORM").waitFor();
  await enter(key);
  await page.getByText("This key manages its team.").waitFor();
  await page.reload();
  await playground.showTab("Admin");
  await page.getByLabel("Key with scope MANAGE_TEAM or MANAGE_PLATFORM").waitFor();
  const rejected = (await admin(service, "GET", `audit?teamId=${own}`)).data.data.filter(({ action }: { action: string }) => action === "request.reject");
  expect(rejected).toEqual([]); // the page asks for nothing that the key cannot do
  playground.expected = /status of 4/; // the rejected keys
});

test("the policy of an endpoint is not replaced by one that was requested before it", async ({ expect }) => {
  await using service = await startService();
  const { teamId } = (await (await fetch(`${service.url}/playground/config.json`)).json()) as { teamId: string };
  await admin(service, "POST", `teams/${teamId}/endpoints`, { name: "Support line", modes: ["chat"] });
  await using playground = await Playground.open(setup.browser, service);
  const { page } = playground;
  let release = () => {};
  const released = new Promise<void>((done) => (release = done));
  await page.addInitScript(() => {
    const { json } = Response.prototype;
    Response.prototype.json = async function () {
      const value: unknown = await json.call(this);
      if (this.headers.has("late")) setTimeout(() => Object.assign(window, { lateIsRead: true })); // when the page has used it
      return value;
    };
  });
  const [selected, other] = await page.locator("#endpoint option").evaluateAll((options) => options.map((option) => [(option as HTMLOptionElement).value, option.textContent!] as const));
  await page.route(`**/admin/endpoints/${selected![0]}`, async (route) => {
    await released;
    await route.continue();
  });
  await page.reload();
  const { section } = await open(playground);
  await section("Endpoints");
  await page.getByRole("button", { name: `Policy ${other![1]}` }).click();
  await page.locator("#policy-endpoint").filter({ hasText: other![1] }).waitFor();
  await page.route("**/runtime/capabilities", async (route) => { // the last request of the former load
    const response = await route.fetch();
    await route.fulfill({ response, headers: { ...response.headers(), late: "" } });
  });
  release();
  await expect.poll(() => page.evaluate("window.lateIsRead")).toBe(true);
  expect(await page.locator("#policy-endpoint").textContent()).toBe(other![1]);
  await page.unrouteAll({ behavior: "wait" });
});

test("changes of a policy are dropped only after the user has agreed", async ({ expect }) => {
  await using service = await startService();
  const { teamId } = (await (await fetch(`${service.url}/playground/config.json`)).json()) as { teamId: string };
  await admin(service, "POST", `teams/${teamId}/endpoints`, { name: "Support line", modes: ["chat"] });
  await using playground = await Playground.open(setup.browser, service);
  const { page } = playground;
  const [profile, endpoint] = [page.locator("#profile"), page.locator("#endpoint")];
  const shown = (name: string) => page.locator("#policy-endpoint").filter({ hasText: name }).waitFor();
  const select = (name: string) => endpoint.selectOption({ label: name });
  const selected = () => endpoint.evaluate((select: HTMLSelectElement) => select.selectedOptions[0]!.label);
  await page.locator("#more").evaluate((details: HTMLDetailsElement) => (details.open = true));
  await select("Demo endpoint");
  await playground.showTab("Policy");
  await shown("Demo endpoint");
  await select("Support line");
  await shown("Support line"); // nothing was changed
  const changed = '{"commandSources": ["bot"], "commandPolicies": [{"type": "hangup", "enabled": true}]}';
  await profile.fill(changed);
  await page.getByText("1 of 14 allowed").waitFor();

  const { dialog, section, submit } = await open(playground);
  const asked = () => dialog.getByRole("heading", { name: "Discard your changes to Support line?" }).waitFor();
  await playground.showTab("Policy");
  await select("Demo endpoint");
  await asked();
  await playground.checkAccessible("policy-changes");
  await submit("Cancel");
  expect([await selected(), await profile.inputValue()]).toEqual(["Support line", changed]);

  await playground.showTab("Admin");
  await section("Endpoints");
  await page.getByRole("button", { name: "Policy Demo endpoint" }).click();
  await asked();
  await page.keyboard.press("Escape");
  await dialog.waitFor({ state: "hidden" });
  const checked = page.waitForRequest("**/callbacks/lint");
  await page.getByRole("button", { name: "Policy Support line" }).click(); // the same one
  await checked; // when it is loaded
  expect(await profile.inputValue()).toBe(changed);

  await select("Demo endpoint");
  await asked();
  await submit("Discard");
  await shown("Demo endpoint");
  expect(await selected()).toBe("Demo endpoint");
  expect(await profile.inputValue()).not.toBe(changed);
});

test("a policy cannot be edited while that of another endpoint is loaded", async () => {
  await using service = await startService();
  const { teamId } = (await (await fetch(`${service.url}/playground/config.json`)).json()) as { teamId: string };
  const { data } = await admin(service, "POST", `teams/${teamId}/endpoints`, { name: "Support line", modes: ["chat"] });
  await using playground = await Playground.open(setup.browser, service);
  const { page } = playground;
  let release = () => {};
  const released = new Promise<void>((done) => (release = done));
  await page.route(`**/admin/endpoints/${data.id}`, async (route) => {
    await released;
    await route.continue();
  });
  const { section } = await open(playground);
  await section("Endpoints");
  await page.getByRole("button", { name: "Policy Demo endpoint" }).click();
  await page.locator("#policy-endpoint").filter({ hasText: "Demo endpoint" }).waitFor();
  await page.locator("#profile:read-write").waitFor();
  await playground.showTab("Admin");
  await page.getByRole("button", { name: "Policy Support line" }).click();
  await page.locator("#profile:read-only").waitFor();
  release();
  await page.locator("#policy-endpoint").filter({ hasText: "Support line" }).waitFor();
  await page.locator("#profile:read-write").waitFor();
  await page.unrouteAll({ behavior: "wait" });
});
