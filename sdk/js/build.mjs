// Builds dist: an ES module, a CommonJS module and a script for pages without a bundler, with types and source maps.
//
//   dist/esm          import { connect } from "@telapi/sdk"
//   dist/cjs          const { connect } = require("@telapi/sdk")
//   dist/telapi.js    <script src="telapi.js"></script> defines the global variable telapi
import { execFileSync } from "node:child_process";
import { copyFileSync, rmSync, writeFileSync } from "node:fs";
import { build } from "esbuild";

process.chdir(import.meta.dirname);
rmSync("dist", { recursive: true, force: true });

const options = { bundle: true, minify: true, target: "es2022", sourcemap: true, logLevel: "warning" };

for (const format of ["esm", "cjs"]) {
  const outdir = `dist/${format}`;
  execFileSync("node_modules/.bin/tsc", ["-p", "tsconfig.build.json", "--outDir", outdir], { stdio: "inherit" });
  await build({ ...options, format, outdir, entryPoints: ["src/index.ts"] });
  // react.js imports index.js, so that an application has each class once.
  await build({ ...options, format, outdir, entryPoints: ["src/react.ts"], external: ["react", "./index.js"] });
}
writeFileSync("dist/cjs/package.json", '{"type":"commonjs"}\n');
await build({ ...options, format: "iife", globalName: "telapi", outfile: "dist/telapi.js", entryPoints: ["src/index.ts"] });
copyFileSync("../../LICENSE", "LICENSE"); // npm adds it to the package
