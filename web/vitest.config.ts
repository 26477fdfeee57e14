import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    include: ["test/**/*.test.ts"],
    globalSetup: "test/setup.ts",
    isolate: false, // loads Playwright once for each worker
    maxWorkers: 2,
    sequence: { concurrent: true },
    maxConcurrency: 2, // more would take longer: a call needs CPU time for as long as it lasts
    testTimeout: 900_000,
    hookTimeout: 240_000,
    expect: { poll: { timeout: 240_000 } }, // enough on a busy machine
  },
});
