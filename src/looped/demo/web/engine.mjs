// Looped Transformers in plain JavaScript. Reads the safetensors files that `looped models pack` writes and runs the
// block loop by loop in float32; the products go through matmul.wat where the browser has WebAssembly SIMD.
// It imitates src/looped/models and src/looped/kernels/reference.py; tests hold its numbers against PyTorch's.

import { Friendly } from "./friendly.mjs";

const RMS_EPSILON = 1e-12;
const EMBEDDING_STD = 0.02;

// ---- files ----------------------------------------------------------------------------------------------------------

const TO_FLOAT32 = {
  BF16(bytes) {
    const halves = new Uint16Array(bytes), words = new Uint32Array(halves.length);
    for (let i = 0; i < halves.length; i++) words[i] = halves[i] << 16;
    return new Float32Array(words.buffer);
  },
  F16(bytes) {
    return Float32Array.from(new Uint16Array(bytes), (half) => {
      const sign = half & 0x8000 ? -1 : 1, exponent = half >> 10 & 31, fraction = half & 1023;
      if (exponent === 31) return fraction ? NaN : sign * Infinity;
      return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * fraction / 1024);
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
  for (const [name, { dtype, shape, data_offsets: [from, to] }] of Object.entries(entries)) {
    if (!(dtype in TO_FLOAT32)) throw new Friendly(`The tensor ${name} has the type ${dtype}, which this page cannot read.`);
    if (8 + length + to > bytes.length) throw new Friendly("This file ends too early: it was not copied completely.");
    tensors[name] = { shape, data: TO_FLOAT32[dtype](bytes.slice(8 + length + from, 8 + length + to).buffer) };
  }
  return { metadata, tensors };
}

/** Return what a file of `looped models pack` says about itself, without its weights. */
export function describe({ metadata, tensors }) {
  let about;
  try {
    about = JSON.parse(metadata.looped);
  } catch {
    throw new Friendly("This safetensors file holds no looped model. Expected one made by “looped models pack”.");
  }
  const task = about.config?.task?.name;
  if (!(task in SPECS)) {
    throw new Friendly(`Models of the task ${task ?? "(none)"} do not run in this page. Those of ${Object.keys(SPECS).join(", ")} do.`);
  }
  const parameters = Object.values(tensors).reduce((sum, { data }) => sum + data.length, 0);
  return { parameters, ...about };
}

// ---- tasks: what a model must know of them ----------------------------------------------------------------------------

const strings = (task, slack) => ({ kind: "tokens", seqLen: 2 * task.length + slack + 2, causal: false });
const SPECS = {
  sudoku({ side = 9 }) {
    const cells = [...Array(side * side).keys()], box = Math.sqrt(side);
    const row = (cell) => Math.floor(cell / side), column = (cell) => cell % side;
    const inBox = (cell) => box * Math.floor(row(cell) / box) + Math.floor(column(cell) / box);
    return {
      kind: "tokens", seqLen: side * side, causal: false,
      coordinates: [cells, cells.map(row), cells.map(column), cells.map(inBox)],
    };
  },
  "edit-distance": (task) => strings(task, task.lengths === "any" ? 0 : 2),
  lcs: (task) => strings(task, task.pairs === "edited" && task.lengths !== "any" ? 2 : 0),
  countdown: ({ count = 4 }) => ({ kind: "tokens", seqLen: count + 1 + 5 * (count - 1), causal: false }),
  "decision-tree": ({ points = 101 }) => ({ kind: "vectors", seqLen: 2 * points - 1, causal: true }),
};

// ---- products -----------------------------------------------------------------------------------------------------------

const up = (size, multiple) => Math.ceil(size / multiple) * multiple;

/** Memory and matmul for one model: by WebAssembly, or in plain JavaScript where `wasm` is null or refused. */
export class Arena {
  static async create(wasm) {
    const arena = new Arena();
    try {
      if (!wasm) throw new Error("plain JavaScript was asked for");
      const memory = new WebAssembly.Memory({ initial: 1 });
      const { instance } = await WebAssembly.instantiate(wasm, { engine: { memory } });
      Object.assign(arena, { memory, kernel: instance.exports.matmul });
    } catch {
      arena.kernel = null;
      arena.numbers = new Float32Array(0);
    }
    return arena;
  }

  size = 0;

  /** Return the place of `count` new numbers, all 0. Views made before are no longer valid. */
  reserve(count) {
    const at = this.size;
    this.size += up(count, 16);
    if (this.kernel) {
      const missing = this.size * 4 - this.memory.buffer.byteLength;
      if (missing > 0) this.memory.grow(Math.max(Math.ceil(missing / 65536), 64));
    } else if (this.size > this.numbers.length) {
      const larger = new Float32Array(Math.max(this.size, 2 * this.numbers.length));
      larger.set(this.numbers);
      this.numbers = larger;
    }
    return at;
  }

  get view() {
    return this.kernel ? new Float32Array(this.memory.buffer) : this.numbers;
  }

  /** y = x w: places in memory with their row strides; rows are computed by fours, so y needs room for up(m, 4). */
  matmul(x, xStride, w, wStride, y, yStride, m, k, n) {
    const whole = this.kernel ? n - n % 8 : 0;
    if (whole) this.kernel(4 * x, 4 * xStride, 4 * w, 4 * wStride, 4 * y, 4 * yStride, up(m, 4), k, whole);
    if (whole < n) plainMatmul(this.view, x, xStride, w + whole, wStride, y + whole, yStride, m, k, n - whole);
  }
}

function plainMatmul(f, x, xStride, w, wStride, y, yStride, m, k, n) {
  for (let i = 0; i < m; i++) {
    const from = x + i * xStride, to = y + i * yStride;
    let j = 0;
    for (; j + 4 <= n; j += 4) {
      let s0 = 0, s1 = 0, s2 = 0, s3 = 0;
      for (let l = 0, at = w + j; l < k; l++, at += wStride) {
        const value = f[from + l];
        s0 += value * f[at]; s1 += value * f[at + 1]; s2 += value * f[at + 2]; s3 += value * f[at + 3];
      }
      f[to + j] = s0; f[to + j + 1] = s1; f[to + j + 2] = s2; f[to + j + 3] = s3;
    }
    for (; j < n; j++) {
      let sum = 0;
      for (let l = 0, at = w + j; l < k; l++, at += wStride) sum += f[from + l] * f[at];
      f[to + j] = sum;
    }
  }
}

// ---- small functions ------------------------------------------------------------------------------------------------------

/** Abramowitz and Stegun 7.1.26: within 1.5e-7. */
function erf(x) {
  const a = Math.abs(x), t = 1 / (1 + 0.3275911 * a);
  const tail = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t;
  return Math.sign(x) * (1 - tail * Math.exp(-a * a));
}

const silu = (x) => x / (1 + Math.exp(-x));
const ACTIVATIONS = { gelu: (x) => 0.5 * x * (1 + erf(x * Math.SQRT1_2)), relu: (x) => Math.max(x, 0), silu };

function sinusoid(value, dim) {
  const encoding = new Float32Array(dim);
  for (let i = 0; i < dim; i += 2) {
    const angle = value * 10000 ** (-i / dim);
    encoding[i] = Math.sin(angle);
    encoding[i + 1] = Math.cos(angle);
  }
  return encoding;
}

/** W x + b for one vector; `rows` of W from `first` on. */
function affine({ data, shape }, bias, x, first = 0, rows = shape.at(-2)) {
  const inner = shape.at(-1);
  return Float32Array.from({ length: rows }, (_, i) => {
    let sum = bias ? bias.data[first + i] : 0;
    for (let j = 0; j < inner; j++) sum += data[(first + i) * inner + j] * x[j];
    return sum;
  });
}

// ---- modulation -------------------------------------------------------------------------------------------------------------

const SCALES = ["scale1", "scale2"], GATES = ["gate1", "gate2"], SHIFTS = ["shift1", "shift2"];
/** What a conditioning sets, in the order of its vectors; 1 is attention, 2 the feed-forward layer. */
const PARTS = {
  none: [], additive: [], timestep: [...SCALES, ...GATES], static: [...SCALES, ...GATES], table: [...SCALES, ...GATES],
  scale: SCALES, gate: GATES, shift: [...SCALES, ...GATES, ...SHIFTS], eta: ["gate2"],
};

/** Makes what scales each layer in loop t: {scale1, shift1, gate1, scale2, shift2, gate2}, null where nothing does. */
class Conditioner {
  constructor(config, tensors) {
    this.config = config;
    this.tensors = tensors;
    const { conditioning, block } = config;
    this.name = conditioning === "auto" ? (block === "modulated" ? "timestep" : "none") : conditioning;
    this.parts = PARTS[this.name];
    this.cache = new Map();
  }

  /** The time of loop t when `loops` are run. */
  time(t, loops) {
    const { num_loops: trained, extrapolation = "extend" } = this.config;
    if (loops <= trained || extrapolation === "extend") return t;
    return extrapolation === "clamp" ? Math.min(t, trained - 1) : t * trained / loops;
  }

  at(t, loops) {
    const time = this.time(t, loops);
    if (!this.cache.has(time)) this.cache.set(time, this.make(time));
    return this.cache.get(time);
  }

  make(time) {
    const { dim, num_layers: layers } = this.config, own = (name) => this.tensors[`stack.conditioner.${name}`];
    let vectors = null;
    if (own("w5")) {
      const hidden = affine(own("w4"), own("b4"), sinusoid(time, dim)).map(silu);
      const encoding = affine(own("w3"), own("b3"), hidden).map(silu);
      vectors = (layer, size) => affine(own("w5"), own("b5"), encoding, layer * size, size);
    } else if (own("vectors")) {
      vectors = (layer, size) => own("vectors").data.subarray(layer * size, (layer + 1) * size);
    } else if (own("rows")) {
      const { data, shape } = own("rows"), below = Math.min(Math.floor(time), shape[0] - 1);
      const above = Math.min(below + 1, shape[0] - 1), share = time - below;
      vectors = (layer, size) => Float32Array.from({ length: size }, (_, i) => {
        const low = data[(below * layers + layer) * size + i];
        return low + share * (data[(above * layers + layer) * size + i] - low);
      });
    }
    return Array.from({ length: layers }, (_, layer) => {
      const gains = (name) => this.tensors[`stack.layers.${layer}.${name}`]?.data ?? null;
      const set = { scale1: gains("gain_attention"), scale2: gains("gain_feed_forward") };
      if (vectors) {
        const all = vectors(layer, this.parts.length * dim);
        this.parts.forEach((part, i) => { set[part] = all.subarray(i * dim, (i + 1) * dim); });
      }
      return set;
    });
  }

  signal(t, loops) {
    const amplitude = this.tensors["stack.signal.amplitude"]?.data;
    return amplitude ? sinusoid(this.time(t, loops), this.config.dim).map((x, i) => x * amplitude[i]) : null;
  }
}

// ---- the model ----------------------------------------------------------------------------------------------------------------

export class Model {
  static async load(bytes, wasm) {
    const file = readSafetensors(bytes);
    return new Model(describe(file), file.tensors, await Arena.create(wasm));
  }

  constructor(about, tensors, arena) {
    this.about = about;
    this.tensors = tensors;
    this.arena = arena;
    const config = this.config = about.config.model;
    this.spec = SPECS[about.config.task.name](about.config.task);
    this.causal = config.attention === "task" ? this.spec.causal : config.attention === "causal";
    this.conditioner = new Conditioner(config, tensors);
    this.width = up(config.dim, 8);
    this.layers = Array.from({ length: config.num_layers }, (_, i) => Object.fromEntries(
      ["w_qkv", "w_out", "w_in", "w_back"].map((name) => [name, this.#matrix(tensors[`stack.layers.${i}.${name}`])]),
    ));
    this.inject = tensors["stack.w_inject"] && this.#matrix(tensors["stack.w_inject"]);
    this.head = this.#matrix(tensors.head ?? tensors.embedding);
    this.outputs = this.head.n;
    this.buffers = new Map();
  }

  /** Copy a weight of shape (n, k) into memory as the matrix k by n, its rows padded to whole vectors. */
  #matrix({ data, shape: [n, k] }) {
    const stride = up(n, 8), at = this.arena.reserve(k * stride), f = this.arena.view;
    for (let i = 0; i < n; i++) for (let j = 0; j < k; j++) f[at + j * stride + i] = data[i * k + j];
    return { at, stride, n, k };
  }

  /** Return the working memory for sequences of `seq` tokens. */
  workspace(seq) {
    if (!this.buffers.has(seq)) {
      const { dim, num_heads: heads } = this.config, rows = up(seq, 4);
      const ff = this.layers[0].w_in.n, columns = up(seq, 8);
      const room = (width) => ({ at: this.arena.reserve(rows * up(width, 8)), stride: up(width, 8) });
      this.buffers.set(seq, {
        hidden: room(dim), qkv: room(3 * dim), mixed: room(dim), ff: room(ff), both: room(2 * dim),
        keys: { at: this.arena.reserve((dim / heads) * columns), stride: columns },
        scores: { at: this.arena.reserve(rows * columns), stride: columns },
        out: room(this.outputs),
      });
    }
    return this.buffers.get(seq);
  }

  multiply(from, matrix, to, rows) {
    this.arena.matmul(from.at, from.stride, matrix.at, matrix.stride, to.at, to.stride, rows, matrix.k, matrix.stride);
  }

  /** Tokens, or vectors one after the other, as embeddings with their positions: seq by dim. */
  embed(inputs) {
    const { embedding, b_embedding: bias } = this.tensors, { dim, positions } = this.config;
    const vectors = this.spec.kind === "vectors", size = vectors ? embedding.shape[1] : 1;
    const seq = inputs.length / size, state = new Float32Array(seq * dim);
    for (let t = 0; t < seq; t++) {
      const row = vectors
        ? affine(embedding, bias, inputs.slice(t * size, (t + 1) * size))
        : embedding.data.subarray(inputs[t] * dim, (inputs[t] + 1) * dim);
      for (let i = 0; i < dim; i++) state[t * dim + i] = row[i];
      if (positions === "learned") this.#add(state, t, this.tensors["positions.0"], t);
      if (positions === "coordinates") {
        this.spec.coordinates.forEach((ids, p) => this.#add(state, t, this.tensors[`positions.${p}`], ids[t]));
      }
      if (positions === "sinusoidal") {
        const encoding = sinusoid(t, dim);
        for (let i = 0; i < dim; i++) state[t * dim + i] += Math.SQRT2 * EMBEDDING_STD * encoding[i];
      }
    }
    return { seq, state };
  }

  #add(state, t, { data, shape: [, dim] }, row) {
    for (let i = 0; i < dim; i++) state[t * dim + i] += data[row * dim + i];
  }

  /** Begin to answer one example: token ids, or its vectors one after the other. `loops` matters to `extrapolation: rescale`. */
  start(inputs, loops = this.config.num_loops) {
    return new Session(this, inputs, loops);
  }

  /** Return the modulation of the first loops by name: {alpha1: [Float32Array per loop], ...} for one layer. */
  modulation(loops, layer = 0) {
    const names = { scale1: "alpha1", scale2: "alpha2", gate1: "gamma1", gate2: "gamma2", shift1: "shift1", shift2: "shift2" };
    const rows = Array.from({ length: loops }, (_, t) => this.conditioner.at(t, loops)[layer]);
    return Object.fromEntries(
      Object.entries(names).filter(([part]) => rows[0][part]).map(([part, name]) => [name, rows.map((row) => row[part])]),
    );
  }
}

/** One example on its way through the loops. */
export class Session {
  constructor(model, inputs, loops) {
    const { seq, state } = model.embed(inputs);
    Object.assign(this, { model, seq, loops, embeddings: state, done: 0, change: 0 });
    this.state = model.config.injection === "none" ? state.slice() : new Float32Array(state.length);
    this.room = model.workspace(seq);
    this.rotation = model.config.positions === "rotary" ? rotation(seq, model.config.dim / model.config.num_heads) : null;
  }

  /** Run one loop. With `attention`, return what every head attends to: per layer a Float32Array of heads, seq by seq. */
  step(attention = false) {
    const { model, state } = this, before = state.slice(), t = this.done;
    this.#inject(t);
    const seen = model.conditioner.at(t, this.loops).map((set, layer) => {
      const weights = this.#attend(model.layers[layer], set, attention);
      this.#feedForward(model.layers[layer], layer, set);
      return weights;
    });
    this.done += 1;
    let moved = 0, size = 0;
    for (let i = 0; i < state.length; i++) {
      moved += (state[i] - before[i]) ** 2;
      size += state[i] ** 2;
    }
    this.change = Math.sqrt(moved / Math.max(size, 1e-30));
    this.size = Math.sqrt(size / state.length);
    return attention ? seen : null;
  }

  /** Return what the model would answer now: seq by outputs, class scores or values. */
  read() {
    const { model, seq, room } = this, { dim, norm } = model.config, { gain, b_head: bias } = model.tensors;
    this.#normalise(room.hidden, norm !== "none", gain?.data, null);
    model.multiply(room.hidden, model.head, room.out, seq);
    const f = model.arena.view, scores = new Float32Array(seq * model.outputs);
    for (let t = 0; t < seq; t++) {
      const from = room.out.at + t * room.out.stride;
      scores.set(f.subarray(from, from + model.outputs), t * model.outputs);
      if (bias) for (let k = 0; k < model.outputs; k++) scores[t * model.outputs + k] += bias.data[k];
    }
    return scores;
  }

  #inject(t) {
    const { model, state, embeddings, room, seq } = this, { dim, injection } = model.config;
    if (injection === "add") for (let i = 0; i < state.length; i++) state[i] += embeddings[i];
    if (injection === "concat") {
      const f = model.arena.view, { at, stride } = room.both;
      for (let row = 0; row < seq; row++) {
        f.set(state.subarray(row * dim, (row + 1) * dim), at + row * stride);
        f.set(embeddings.subarray(row * dim, (row + 1) * dim), at + row * stride + dim);
      }
      model.multiply(room.both, model.inject, room.hidden, seq);
      this.#each(room.hidden, (i, value) => { state[i] = value; });
    }
    const signal = model.conditioner.signal(t, this.loops);
    if (signal) for (let i = 0; i < state.length; i++) state[i] += signal[i % dim];
  }

  /** Write scale * state / RMS(state) + shift to a buffer. */
  #normalise({ at, stride }, rms, scale, shift) {
    const { state, seq, model } = this, { dim } = model.config, f = model.arena.view;
    for (let t = 0; t < seq; t++) {
      let factor = 1;
      if (rms) {
        let sum = 0;
        for (let i = 0; i < dim; i++) sum += state[t * dim + i] ** 2;
        factor = 1 / Math.sqrt(sum / dim + RMS_EPSILON);
      }
      for (let i = 0; i < dim; i++) {
        let value = state[t * dim + i] * factor;
        if (scale) value *= scale[i];
        if (shift) value += shift[i];
        f[at + t * stride + i] = value;
      }
    }
  }

  /** Call `use(place in the state, value)` for all numbers of a buffer. */
  #each({ at, stride }, use) {
    const { dim } = this.model.config, f = this.model.arena.view;
    for (let t = 0; t < this.seq; t++) for (let i = 0; i < dim; i++) use(t * dim + i, f[at + t * stride + i]);
  }

  #addGated(buffer, gate, bias = null) {
    const { state } = this, { dim } = this.model.config;
    this.#each(buffer, (i, value) => {
      const update = bias ? value + bias[i % dim] : value;
      state[i] += gate ? gate[i % dim] * update : update;
    });
  }

  #attend(layer, { scale1, shift1, gate1 }, keep) {
    const { model, seq, room, rotation: turn } = this, { dim, num_heads: heads, norm, attention_weights: selection } = model.config;
    const size = dim / heads, { qkv, keys, scores, mixed } = room, { arena } = model;
    this.#normalise(room.hidden, norm !== "none", scale1, shift1);
    model.multiply(room.hidden, layer.w_qkv, qkv, seq);
    if (norm === "query-key") this.#rawValues(layer);
    const f = arena.view, kept = keep ? new Float32Array(heads * seq * seq) : null;
    if (turn) for (let head = 0; head < 2 * heads; head++) rotate(f, qkv, head * size, size, seq, turn);
    const sharpness = selection === "hardmax" ? 1 : 1 / Math.sqrt(size);
    for (let head = 0; head < heads; head++) {
      const query = qkv.at + head * size, key = query + dim, value = query + 2 * dim;
      for (let i = 0; i < size; i++) {
        for (let t = 0; t < seq; t++) f[keys.at + i * keys.stride + t] = f[key + t * qkv.stride + i];
      }
      arena.matmul(query, qkv.stride, keys.at, keys.stride, scores.at, scores.stride, seq, size, keys.stride);
      for (let t = 0; t < seq; t++) {
        const row = f.subarray(scores.at + t * scores.stride, scores.at + t * scores.stride + seq);
        (selection === "hardmax" ? hardmax : softmax)(row, sharpness, model.causal ? t + 1 : seq);
        if (kept) kept.set(row, (head * seq + t) * seq);
      }
      arena.matmul(scores.at, scores.stride, value, qkv.stride, mixed.at + head * size, mixed.stride, seq, seq, size);
    }
    model.multiply(mixed, layer.w_out, room.hidden, seq);
    this.#addGated(room.hidden, gate1);
    return kept;
  }

  /** Let attention read values of the state itself, as `norm: query-key` has it. */
  #rawValues(layer) {
    const { model, room, seq } = this, { dim } = model.config, { at, stride } = room.qkv;
    const f = model.arena.view, rows = f.slice(at, at + seq * stride);
    this.#normalise(room.hidden, false, null, null);
    model.multiply(room.hidden, layer.w_qkv, room.qkv, seq);
    for (let t = 0; t < seq; t++) f.set(rows.subarray(t * stride, t * stride + 2 * dim), at + t * stride);
  }

  #feedForward(layer, number, { scale2, shift2, gate2 }) {
    const { model, seq, room } = this, { norm, activation } = model.config, act = ACTIVATIONS[activation];
    const own = (name) => model.tensors[`stack.layers.${number}.${name}`].data, bias = own("b_in");
    this.#normalise(room.hidden, norm === "rms", scale2, shift2);
    model.multiply(room.hidden, layer.w_in, room.ff, seq);
    const f = model.arena.view, { at, stride } = room.ff;
    for (let t = 0; t < seq; t++) {
      const row = at + t * stride;
      for (let i = 0; i < bias.length; i++) f[row + i] = act(f[row + i] + bias[i]);
    }
    model.multiply(room.ff, layer.w_back, room.hidden, seq);
    this.#addGated(room.hidden, gate2, own("b_back"));
  }
}

function rotation(seq, size) {
  const half = size / 2, cos = new Float32Array(seq * half), sin = new Float32Array(seq * half);
  for (let t = 0; t < seq; t++) {
    for (let i = 0; i < half; i++) {
      const angle = t * 10000 ** (-i / half);
      cos[t * half + i] = Math.cos(angle);
      sin[t * half + i] = Math.sin(angle);
    }
  }
  return { cos, sin };
}

/** Turn each pair (x_i, x_{i + half}) of one head by its position's angle. */
function rotate(f, { at, stride }, offset, size, seq, { cos, sin }) {
  const half = size / 2;
  for (let t = 0; t < seq; t++) {
    const from = at + t * stride + offset;
    for (let i = 0; i < half; i++) {
      const left = f[from + i], right = f[from + half + i], c = cos[t * half + i], s = sin[t * half + i];
      f[from + i] = left * c - right * s;
      f[from + half + i] = left * s + right * c;
    }
  }
}

/** Turn scores into weights, in place: of the first `visible` entries; the others get none. */
export function softmax(row, sharpness, visible) {
  let top = -Infinity, sum = 0;
  for (let i = 0; i < visible; i++) if (row[i] > top) top = row[i];
  for (let i = 0; i < visible; i++) sum += row[i] = Math.exp((row[i] - top) * sharpness);
  for (let i = 0; i < visible; i++) row[i] /= sum;
  row.fill(0, visible);
}

function hardmax(row, _, visible) {
  const top = row.subarray(0, visible).reduce((a, b) => Math.max(a, b), -Infinity);
  let winners = 0;
  for (let i = 0; i < visible; i++) winners += row[i] === top;
  for (let i = 0; i < row.length; i++) row[i] = i < visible && row[i] === top ? 1 / winners : 0;
}
