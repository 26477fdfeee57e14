import type { LaunchOptions } from "playwright-core";

/** Debian's Chromium, or the one in $CHROMIUM. */
export const chromiumOptions = (args: readonly string[]): LaunchOptions => ({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-dev-shm-usage", ...args],
});
