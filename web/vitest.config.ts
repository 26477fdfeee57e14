import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    include: ["test/**/*.test.ts"],
    globalSetup: "test/build.ts",
    sequence: { concurrent: true },
    maxConcurrency: 3,
    testTimeout: 300_000,
    hookTimeout: 120_000,
    retry: 1, // on a machine that is busy with other work, Chromium can take too long
  },
});
