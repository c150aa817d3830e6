// Runs the browser engine on the examples of one model and writes what it answers after chosen loops as float32.
// usage: node engine_check.mjs MODEL.safetensors CASE.json KERNEL.wasm|none OUT.bin
// CASE.json: {inputs: [[...], ...], loops: [...]}; OUT.bin: for each example and loop the scores, seq by outputs.

import { appendFileSync, readFileSync, writeFileSync } from "node:fs";

import { Model } from "../../src/looped/demo/web/engine.mjs";

const [file, example, kernel, out] = process.argv.slice(2);
const { inputs, loops } = JSON.parse(readFileSync(example));
const model = await Model.load(new Uint8Array(readFileSync(file)), kernel === "none" ? null : readFileSync(kernel));
const last = Math.max(...loops);
writeFileSync(out, "");
for (const input of inputs) {
  const session = model.start(input, last);
  for (let t = 1; t <= last; t++) {
    session.step();
    if (loops.includes(t)) appendFileSync(out, new Uint8Array(session.read().buffer));
  }
}
console.log(model.arena.kernel ? "simd" : "plain");
