// Model files: safetensors as `looped models pack` writes them, and what their cards say.

import { Friendly } from "./friendly.mjs";

const TO_FLOAT32 = {
  BF16(bytes) {
    const halves = new Uint16Array(bytes),
      words = new Uint32Array(halves.length);
    for (let i = 0; i < halves.length; i++) words[i] = halves[i] << 16;
    return new Float32Array(words.buffer);
  },
  F16(bytes) {
    return Float32Array.from(new Uint16Array(bytes), (half) => {
      const sign = half & 0x8000 ? -1 : 1,
        exponent = (half >> 10) & 31,
        fraction = half & 1023;
      if (exponent === 31) return fraction ? NaN : sign * Infinity;
      return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : (2 ** -14 * fraction) / 1024);
    });
  },
  F32: (bytes) => new Float32Array(bytes),
  F64: (bytes) => Float32Array.from(new Float64Array(bytes)),
};

/** Return what a safetensors file holds: its metadata, and each tensor as {shape, data} in float32. */
export function readSafetensors(bytes) {
  const foreign = new Friendly("This is not a safetensors file. Expected one made by “looped models pack”.");
  if (bytes.length < 10) throw foreign;
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const length = Number(view.getBigUint64(0, true));
  if (length > bytes.length - 8) throw foreign;
  let header;
  try {
    header = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes.subarray(8, 8 + length)));
  } catch {
    throw foreign;
  }
  const { __metadata__: metadata = {}, ...entries } = header;
  const tensors = {};
  for (const [
    name,
    {
      dtype,
      shape,
      data_offsets: [from, to],
    },
  ] of Object.entries(entries)) {
    if (!(dtype in TO_FLOAT32))
      throw new Friendly(`The tensor ${name} has the type ${dtype}, which this page cannot read.`);
    if (8 + length + to > bytes.length) throw new Friendly("This file ends too early: it was not copied completely.");
    tensors[name] = { shape, data: TO_FLOAT32[dtype](bytes.slice(8 + length + from, 8 + length + to).buffer) };
  }
  return { metadata, tensors };
}

/** What the engine does not imitate: it would run such a model to wrong answers. */
const EXTENSIONS = {
  "a layer of your own": ({ layer = "transformer" }) => layer !== "transformer",
  "an attention bias": ({ attention_bias: bias = "none" }) => bias !== "none",
  "a prelude or a coda": ({ prelude_layers: before = 0, coda_layers: after = 0 }) => before > 0 || after > 0,
  "a random start state": ({ start = "input" }) => start === "random",
};

/** Return what a file of `looped models pack` says about itself, without its weights. */
export function describe({ metadata, tensors }) {
  let about;
  try {
    about = JSON.parse(metadata.looped);
  } catch {
    throw new Friendly("This safetensors file holds no looped model. Expected one made by “looped models pack”.");
  }
  const { task: { name: task } = {}, model = {} } = about?.config ?? {};
  if (!Object.hasOwn(SPECS, task ?? "")) {
    throw new Friendly(
      `Models of the task ${task ?? "(none)"} do not run in this page. Those of ${Object.keys(SPECS).join(", ")} do.`,
    );
  }
  const strange = Object.entries(EXTENSIONS).find(([, isIn]) => isIn(model));
  if (strange) throw new Friendly(`A model with ${strange[0]} does not run in this page.`);
  const parameters = Object.values(tensors).reduce((sum, { data }) => sum + data.length, 0);
  return { parameters, ...about };
}

// ---- tasks: what a model must know of them ---------------------------------------------------------------------

const strings = (task, slack) => ({ kind: "tokens", seqLen: 2 * task.length + slack + 2, causal: false });
export const SPECS = {
  sudoku({ side = 9 }) {
    const cells = [...Array(side * side).keys()],
      box = Math.sqrt(side);
    const row = (cell) => Math.floor(cell / side),
      column = (cell) => cell % side;
    const inBox = (cell) => box * Math.floor(row(cell) / box) + Math.floor(column(cell) / box);
    return {
      kind: "tokens",
      seqLen: side * side,
      causal: false,
      coordinates: [cells, cells.map(row), cells.map(column), cells.map(inBox)],
    };
  },
  "edit-distance": (task) => strings(task, task.lengths === "any" ? 0 : 2),
  lcs: (task) => strings(task, task.pairs === "edited" && task.lengths !== "any" ? 2 : 0),
  countdown: ({ count = 4 }) => ({ kind: "tokens", seqLen: count + 1 + 5 * (count - 1), causal: false }),
  "decision-tree": ({ points = 101 }) => ({ kind: "vectors", seqLen: 2 * points - 1, causal: true }),
};
