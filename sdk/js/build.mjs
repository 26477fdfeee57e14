// Builds dist: an ES module, a CommonJS module and a script for pages without a bundler, with types and source maps.
//
//   dist/esm          import { connect } from "@telapi/sdk"
//   dist/cjs          const { connect } = require("@telapi/sdk")
//   dist/telapi.js    <script src="telapi.js"></script> defines the global variable telapi
//   dist/telapi-voice.js    after telapi.js, defines the global variable telapiVoice
//   dist/voice-worklet.js   the code of the audio thread, for pages with a strict Content-Security-Policy
//
// The entry points react, voice and runtime import the core, so that an application has each class once.
import { execFileSync } from "node:child_process";
import { copyFileSync, rmSync, writeFileSync } from "node:fs";
import { build } from "esbuild";

process.chdir(import.meta.dirname);
rmSync("dist", { recursive: true, force: true });

const options = { bundle: true, minify: true, target: "es2022", sourcemap: true, logLevel: "warning" };

const worklet = { ...options, entryPoints: ["src/voice/worklet.ts"], outfile: "dist/voice-worklet.js" };
await build(worklet);
const [{ text }] = (await build({ ...worklet, sourcemap: false, write: false })).outputFiles;
const voice = { ...options, entryPoints: ["src/voice.ts"], define: { workletSource: JSON.stringify(text) } };

/** Replaces the core with `./index.js`, or in a script with the global variable telapi. */
const core = (script) => ({
  name: "core",
  setup(build) {
    build.onResolve({ filter: /\/(index|errors)\.js$/ }, () => (script ? { path: "telapi", namespace: "global" } : { path: "./index.js", external: true }));
    build.onLoad({ filter: /./, namespace: "global" }, ({ path }) => ({ contents: `module.exports = ${path}` }));
  },
});

for (const format of ["esm", "cjs"]) {
  const outdir = `dist/${format}`;
  execFileSync("node_modules/.bin/tsc", ["-p", "tsconfig.build.json", "--outDir", outdir], { stdio: "inherit" });
  await build({ ...options, format, outdir, entryPoints: ["src/index.ts"] });
  await build({ ...options, format, outdir, entryPoints: ["src/react.ts"], external: ["react"], plugins: [core(false)] });
  // Node prints the line of an uncaught error: it must be readable.
  await build({ ...options, minify: false, format, outdir, entryPoints: ["src/runtime.ts"], platform: "node", external: ["ws"], plugins: [core(false)] });
  await build({ ...voice, format, outdir, plugins: [core(false)] });
}
writeFileSync("dist/cjs/package.json", '{"type":"commonjs"}\n');
await build({ ...options, format: "iife", globalName: "telapi", outfile: "dist/telapi.js", entryPoints: ["src/index.ts"] });
await build({ ...voice, format: "iife", globalName: "telapiVoice", outfile: "dist/telapi-voice.js", plugins: [core(true)] });
copyFileSync("../../LICENSE", "LICENSE"); // npm adds it to the package
