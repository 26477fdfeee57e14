import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    include: ["test/**/*.test.ts"],
    globalSetup: "test/setup.ts",
    maxWorkers: 2, // tests wait more than they compute, but browsers need much CPU time
    sequence: { concurrent: true },
    maxConcurrency: 3,
    testTimeout: 900_000,
    hookTimeout: 240_000,
    expect: { poll: { timeout: 240_000 } }, // enough on a busy machine
  },
});
