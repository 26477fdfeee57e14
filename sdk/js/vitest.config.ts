import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    include: ["test/**/*.test.ts"],
    globalSetup: "test/build.ts",
    testTimeout: 180_000,
    hookTimeout: 120_000,
    retry: 1, // on a machine that is busy with other work, a server can take too long
  },
});
