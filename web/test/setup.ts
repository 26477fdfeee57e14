import { execFileSync } from "node:child_process";
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { TestProject } from "vitest/node";
import { syllables, wav } from "../../sdk/js/test/wav.js";
import { OwnService } from "./service.js";

declare module "vitest" {
  interface ProvidedContext {
    /** The path of the telapi binary, which contains the built page. */
    program: string;
    /** Files of dist that differed from the build of the sources. */
    stale: string[];
    /** The arguments that give browsers a microphone. */
    microphone: string[];
    /** The service of all tests. */
    service: { url: string; env: Record<string, string> };
  }
}

/** The browser's microphone repeats this: silence, a sound like speech, silence. Times are in seconds. */
const sound = { start: 1, end: 2.5, length: 6 };

/** Builds the page, and the service that serves it unless `make test` has built it, and starts a service for all tests. */
export default async function (project: TestProject): Promise<() => Promise<void>> {
  const dist = join(project.config.root, "dist");
  const before = readDist(dist);
  execFileSync("npm", ["run", "--silent", "build"], { cwd: project.config.root, stdio: "inherit" });
  const after = readDist(dist);
  project.provide("stale", [...new Set([...before.keys(), ...after.keys()])].filter((name) => before.get(name) !== after.get(name)));

  const folder = mkdtempSync(join(tmpdir(), "telapi-playground-"));
  process.env.TMPDIR = folder; // of workers, which end without a chance to delete the files of their browsers
  let program = join(folder, "telapi");
  if (process.env.TEST_PROGRAMS) program = join(process.env.TEST_PROGRAMS, "telapi");
  else execFileSync("go", ["build", "-o", folder, "./cmd/telapi"], { cwd: join(project.config.root, ".."), stdio: "inherit" });
  project.provide("program", program);

  const voice = join(folder, "voice.wav");
  writeFileSync(voice, wav(sound.length, (second) => (second > sound.start && second < sound.end ? syllables(second) : 0)));
  project.provide("microphone", ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream", `--use-file-for-fake-audio-capture=${voice}`]);
  const service = await OwnService.start(program, {}, []);
  // All tests together are more than one client may send.
  for (const tier of ["api", "auth", "webhook"]) await service.telapi("limits", "set", "--tier", tier, "--max", "100000000", "--window", "1m");
  project.provide("service", { url: service.url, env: service.env });
  return async () => {
    await service[Symbol.asyncDispose]();
    rmSync(folder, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 }); // the browsers end a little later
  };
}

function readDist(dist: string): Map<string, string> {
  return new Map(readdirSync(dist).map((name) => [name, readFileSync(join(dist, name), "base64")]));
}
