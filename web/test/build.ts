import { execFileSync } from "node:child_process";
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { TestProject } from "vitest/node";

declare module "vitest" {
  interface ProvidedContext {
    /** The path of the telapi binary, which contains the built page. */
    program: string;
    /** Files of dist that differed from the build of the sources. */
    stale: string[];
  }
}

/** Builds the page, and the service that serves it unless `make test` has built it. */
export default function (project: TestProject): () => void {
  const dist = join(project.config.root, "dist");
  const before = readDist(dist);
  execFileSync("npm", ["run", "--silent", "build"], { cwd: project.config.root, stdio: "inherit" });
  const after = readDist(dist);
  project.provide("stale", [...new Set([...before.keys(), ...after.keys()])].filter((name) => before.get(name) !== after.get(name)));

  if (process.env.TEST_PROGRAMS) {
    project.provide("program", join(process.env.TEST_PROGRAMS, "telapi"));
    return () => {};
  }
  const folder = mkdtempSync(join(tmpdir(), "telapi-playground-"));
  execFileSync("go", ["build", "-o", folder, "./cmd/telapi"], { cwd: join(project.config.root, ".."), stdio: "inherit" });
  project.provide("program", join(folder, "telapi"));
  return () => rmSync(folder, { recursive: true, force: true });
}

function readDist(dist: string): Map<string, string> {
  return new Map(readdirSync(dist).map((name) => [name, readFileSync(join(dist, name), "base64")]));
}
