// Compiles src/ twice: as ES modules into dist/esm, as CommonJS into dist/cjs.
import { execFileSync } from "node:child_process";
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";

const folder = fileURLToPath(new URL("..", import.meta.url));
const typescript = createRequire(import.meta.url).resolve("typescript/lib/tsc.js");
process.chdir(folder);
const manifest = readFileSync("package.json", "utf8");
rmSync("dist", { recursive: true, force: true });
for (const [kind, type] of [["esm", "module"], ["cjs", "commonjs"]]) {
  // TypeScript reads the kind of module from the nearest package.json above src/.
  writeFileSync("src/package.json", JSON.stringify({ type }));
  try {
    execFileSync(process.execPath, [typescript, "-p", ".", "--outDir", `dist/${kind}`], { stdio: "inherit" });
  } finally {
    rmSync("src/package.json");
  }
  mkdirSync(`dist/${kind}`, { recursive: true });
  writeFileSync(`dist/${kind}/package.json`, `${JSON.stringify({ type, version: JSON.parse(manifest).version })}\n`);
}
