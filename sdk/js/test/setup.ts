import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { TestProject } from "vitest/node";
import { Service, type ServiceAddress } from "./integration/service.js";

declare module "vitest" {
  interface ProvidedContext {
    /** The service of all tests that don't need their own. */
    service: ServiceAddress;
  }
}

/**
 * Builds the SDK's dist, and the service and the echo runtime unless `make test` has built them. Then it starts a service
 * for all tests.
 */
export default async function (project: TestProject): Promise<() => Promise<void>> {
  execFileSync("npm", ["run", "--silent", "build"], { cwd: project.config.root, stdio: "inherit" });
  const programs = mkdtempSync(join(tmpdir(), "telapi-sdk-"));
  if (!process.env.TEST_PROGRAMS) {
    const root = new URL("../../..", import.meta.url).pathname;
    execFileSync("go", ["build", "-o", programs, "./cmd/telapi", "./test/echo"], { cwd: root, stdio: "inherit" });
    process.env.TEST_PROGRAMS = programs; // the tests inherit it
  }
  const service = await Service.start({ FEATURE_WEBRTC: "true" });
  project.provide("service", service.address);
  return async () => {
    await service[Symbol.asyncDispose]();
    rmSync(programs, { recursive: true, force: true });
  };
}
