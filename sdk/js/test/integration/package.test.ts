import { execFileSync, spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium } from "playwright-core";
import { afterAll, beforeAll, expect, inject, test } from "vitest";
import { Service } from "./service.js";

const sdk = new URL("../..", import.meta.url).pathname;
const project = mkdtempSync(join(tmpdir(), "telapi-sdk-project-"));
const installed = join(project, "node_modules/@telapi/sdk");
const service = Service.at(inject("service"));

// Packs the SDK as for a registry, and installs the file into an empty project.
beforeAll(() => {
  const [packed] = JSON.parse(execFileSync("npm", ["pack", "--silent", "--json", "--pack-destination", project], { cwd: sdk, encoding: "utf8" })) as [{ filename: string }];
  writeFileSync(join(project, "package.json"), "{}");
  execFileSync("npm", ["install", "--silent", "--offline", "--no-audit", "--no-fund", `./${packed.filename}`], { cwd: project, stdio: "inherit" });
  for (const name of ["ws", "react", "@types/react", "@types/node", "csstype"]) link(name);
});
afterAll(() => rmSync(project, { recursive: true, force: true }));

function link(name: string): void {
  const [scope] = name.split("/");
  if (scope !== name) execFileSync("mkdir", ["-p", join(project, "node_modules", scope!)]);
  symlinkSync(join(sdk, "node_modules", name), join(project, "node_modules", name));
}

/** Connects, sends a message and prints the answer. */
const conversation = (token: unknown) => `
  const session = connect({ token: ${JSON.stringify(token)}, WebSocket });
  session.on("chat", ({ text }) => { print(text); session.dispose(); });
  session.send("chat", { text: "Good day" });
`;

test("the package contains the licence, types and source maps, and nothing else of the repository", () => {
  const files = execFileSync("find", [".", "-type", "f"], { cwd: installed, encoding: "utf8" }).trim().split("\n").sort();
  expect(files.filter((file) => !file.startsWith("./dist/"))).toEqual(["./LICENSE", "./README.md", "./package.json"]);
  for (const script of files.filter((file) => file.endsWith(".js"))) {
    const map = JSON.parse(readFileSync(join(installed, `${script}.map`), "utf8")) as { sourcesContent: string[] };
    expect(map.sourcesContent.join("")).toContain("export ");
    expect(readFileSync(join(installed, script), "utf8")).toContain("//# sourceMappingURL=");
  }
});

test.each([
  ["an ES module", "page.mjs", 'import { connect } from "@telapi/sdk"; import { useTelapi } from "@telapi/sdk/react"; import { callWebRtc } from "@telapi/sdk/voice"; import { WebSocket } from "ws"; import { TelapiError } from "@telapi/sdk"; import * as runtime from "@telapi/sdk/runtime";'],
  ["a CommonJS module", "page.cjs", 'const { connect } = require("@telapi/sdk"); const { useTelapi } = require("@telapi/sdk/react"); const { callWebRtc } = require("@telapi/sdk/voice"); const { WebSocket } = require("ws"); const { TelapiError } = require("@telapi/sdk"); const runtime = require("@telapi/sdk/runtime");'],
])("%s uses the package", async (_, file, imports) => {
  writeFileSync(join(project, file), `${imports}\nconst print = console.log;\nprint(typeof useTelapi, typeof callWebRtc, typeof runtime.Runtime, runtime.TelapiError === TelapiError);\n${conversation(await service.issue())}`);
  const { stdout, stderr } = spawnSync(process.execPath, [file], { cwd: project, encoding: "utf8", timeout: 60_000 });
  expect([stdout, stderr]).toEqual(["function function function true\nGood day\n", ""]);
});

test("a page without a bundler uses the package", async () => {
  const page = `<!doctype html><script src="telapi.js"></script><script>
    const { connect } = telapi, print = (text) => (document.title = text);
    ${conversation(await service.issue())}
  </script>`;
  const server = createServer((request, response) => {
    if (request.url === "/") response.setHeader("Content-Type", "text/html").end(page);
    else if (request.url === "/telapi.js") response.setHeader("Content-Type", "text/javascript").end(readFileSync(join(installed, "dist/telapi.js")));
    else response.writeHead(404).end();
  }).listen(0, "127.0.0.1");
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox", "--disable-dev-shm-usage"] });
  try {
    const tab = await browser.newPage();
    await tab.goto(`http://127.0.0.1:${(server.address() as AddressInfo).port}/`);
    await tab.waitForFunction(() => document.title === "Good day", undefined, { timeout: 60_000 });
  } finally {
    await browser.close();
    server.close();
  }
});

const typed = `
  import { connect, type Session } from "@telapi/sdk";
  import { useTelapi } from "@telapi/sdk/react";
  import { Runtime } from "@telapi/sdk/runtime";
  import { callWebRtc, type WebRtcCall } from "@telapi/sdk/voice";
  const session: Session = connect({ issue: async () => ({ token: "", wsUrl: "" }) });
  session.on("chat", ({ text }) => text?.length);
  export async function serve(runtime: Runtime): Promise<void> {
    for await (const channel of runtime.accept({ capacity: 2 })) for await (const entry of channel) await channel.commit(entry);
  }
  export const chat = () => useTelapi(undefined).messages.map(({ chat }) => chat?.text);
  export const call: Promise<WebRtcCall> = callWebRtc(session, { iceServers: session.iceServers });
  // @ts-expect-error: an option that does not exist
  connect({ key: 1 });
`;

/** The examples of calls in docs/sdk.md. */
function examples(): string[] {
  const [, section] = /\n## Call\n([^]*?)\n## /.exec(readFileSync(join(sdk, "../../docs/sdk.md"), "utf8"))!;
  return [...section!.matchAll(/```js\n([^]*?)```/g)].map(([, code]) => `
  import type { Session } from "@telapi/sdk";
  declare const session: Session;
  declare function showLevels(microphone: number, speaker: number): void;
  ${code}`);
}

// One run of the compiler, which takes as long as it takes for one file.
test("TypeScript finds the types in .mts and .cts files, and accepts the examples of calls in docs/sdk.md", () => {
  const calls = examples();
  expect(calls.length).toBe(2);
  const files = Object.entries({ "page.mts": typed, "page.cts": typed, "call-0.mts": calls[0]!, "call-1.mts": calls[1]! });
  for (const [file, code] of files) writeFileSync(join(project, file), code);
  const args = ["--noEmit", "--strict", "--module", "nodenext", "--target", "es2022", "--lib", "es2022,esnext.disposable,dom", "--types", "node", ...files.map(([file]) => file)];
  const { stdout, status } = spawnSync(join(sdk, "node_modules/.bin/tsc"), args, { cwd: project, encoding: "utf8" });
  expect([stdout, status]).toEqual(["", 0]);
});
