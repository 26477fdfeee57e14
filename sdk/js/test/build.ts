import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { TestProject } from "vitest/node";

declare module "vitest" {
  interface ProvidedContext {
    /** Where the service's program and the runtime of the tests are. */
    programs: string;
  }
}

/** Builds what the tests run: the SDK's own dist, the service, and a call runtime. */
export default function (project: TestProject): () => void {
  const programs = mkdtempSync(join(tmpdir(), "telapi-sdk-"));
  const root = new URL("../../..", import.meta.url).pathname;
  execFileSync("npm", ["run", "--silent", "build"], { cwd: project.config.root, stdio: "inherit" });
  execFileSync("go", ["build", "-o", programs, "./cmd/telapi", "./test/echo"], { cwd: root, stdio: "inherit" });
  project.provide("programs", programs);
  return () => rmSync(programs, { recursive: true, force: true });
}
