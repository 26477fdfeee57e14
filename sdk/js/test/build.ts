import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { TestProject } from "vitest/node";

declare module "vitest" {
  interface ProvidedContext {
    /** The directory with the telapi binary and the echo runtime. */
    programs: string;
  }
}

/** Builds the SDK's dist, and the service and the echo runtime unless `make test` has built them. */
export default function (project: TestProject): () => void {
  execFileSync("npm", ["run", "--silent", "build"], { cwd: project.config.root, stdio: "inherit" });
  if (process.env.TEST_PROGRAMS) {
    project.provide("programs", process.env.TEST_PROGRAMS);
    return () => {};
  }
  const programs = mkdtempSync(join(tmpdir(), "telapi-sdk-"));
  const root = new URL("../../..", import.meta.url).pathname;
  execFileSync("go", ["build", "-o", programs, "./cmd/telapi", "./test/echo"], { cwd: root, stdio: "inherit" });
  project.provide("programs", programs);
  return () => rmSync(programs, { recursive: true, force: true });
}
