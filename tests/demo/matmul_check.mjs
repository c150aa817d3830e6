// Multiplies matrices as the engine does. usage: node matmul_check.mjs CASES.json KERNEL.wasm|none

import { readFileSync } from "node:fs";

import { Arena } from "../../src/looped/demo/web/arena.mjs";

const [path, kernel] = process.argv.slice(2);
const products = [];
for (const { x, w, k, n } of JSON.parse(readFileSync(path))) {
  const arena = await Arena.create(kernel === "none" ? null : readFileSync(kernel));
  const xStride = x[0].length,
    wStride = w[0].length,
    yStride = n + 5,
    rows = 4 * Math.ceil(x.length / 4);
  const places = [rows * xStride, w.length * wStride + 8, rows * yStride].map((size) => arena.reserve(size));
  arena.view.set(x.flat(), places[0]);
  arena.view.set(w.flat(), places[1]);
  arena.matmul(places[0], xStride, places[1], wStride, places[2], yStride, x.length, k, n);
  products.push(x.map((_, i) => [...arena.view.subarray(places[2] + i * yStride, places[2] + i * yStride + n)]));
}
console.log(JSON.stringify(products));
