import { readFileSync } from "node:fs";
import { inspect } from "node:util";
import { gzipSync } from "node:zlib";
import { expect, test } from "vitest";
import manifest from "../package.json" with { type: "json" };

const read = (path: string) => readFileSync(new URL(path, import.meta.url), "utf8");

test.each(["esm/index.js", "cjs/index.js", "telapi.js"])("%s is under 6 KB when compressed", (file) => {
  expect(gzipSync(read(`../dist/${file}`), { level: 9 }).length).toBeLessThanOrEqual(6 * 1024);
});

test.each(["esm", "cjs"])("an uncaught error of dist/%s/runtime.js is readable in Node", async (format) => {
  for (const line of read(`../dist/${format}/runtime.js`).split("\n")) expect(line.length).toBeLessThan(400);
  const { TelapiError } = (await import(new URL(`../dist/${format}/index.js`, import.meta.url).href)) as typeof import("../src/index.js");
  expect(inspect(new TelapiError("UNAUTHORIZED", "The key is invalid."))).toMatch(/^(Error|TelapiError): The key is invalid/);
});

test("the package has no dependencies, pinned versions, and the service's version", () => {
  expect(manifest).not.toHaveProperty("dependencies");
  for (const version of Object.values(manifest.devDependencies)) expect(version).toMatch(/^\d+\.\d+\.\d+$/);
  expect(manifest.version).toBe(read("../../../VERSION").trim());
});

test("the lock file contains no registry host", () => {
  expect(read("../package-lock.json")).not.toMatch(/"resolved"/);
});

const exported = [...`${read("../src/index.ts")}${read("../src/voice.ts")}`.matchAll(/\{([^}]*)\}/g)].flatMap(([, names]) => names!.split(",").map((name) => name.trim())).concat("useTelapi", "TelapiState");

test.each(exported)("%s is documented in the source and in docs/sdk.md", (name) => {
  expect(read("../../../docs/sdk.md")).toMatch(new RegExp(`\`[^\`]*\\b${name}\\b[^\`]*\``));
  const declarations = ["errors", "events", "messages", "options", "outbox", "react", "rejection", "session", "voice/context", "voice/microphone", "voice/speaker", "voice/webrtc"].map((file) => read(`../dist/esm/${file}.d.ts`)).join("\n");
  expect(declarations).toMatch(new RegExp(`\\*/\\nexport (declare )?(class|const|function|interface|type) ${name}\\b`));
});
