import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    include: ["test/**/*.test.ts"],
    globalSetup: "test/setup.ts",
    isolate: false, // loads Playwright once for each worker
    maxWorkers: 3, // tests wait more than they compute
    testTimeout: 180_000,
    hookTimeout: 120_000,
    expect: { poll: { timeout: 60_000 } }, // enough on a busy machine
  },
});
