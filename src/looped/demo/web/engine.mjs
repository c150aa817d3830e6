// Looped Transformers in plain JavaScript, in float32: the block, loop by loop, and its two ends.
// It imitates src/looped/models and src/looped/kernels/reference.py; tests hold its numbers against PyTorch's.

import { Arena, up } from "./arena.mjs";
import { affine, Conditioner, silu, sinusoid } from "./conditioning.mjs";
import { describe, readSafetensors, SPECS } from "./safetensors.mjs";

const RMS_EPSILON = 1e-12;
const EMBEDDING_STD = 0.02;

/** Abramowitz and Stegun 7.1.26: within 1.5e-7. */
function erf(x) {
  const a = Math.abs(x),
    t = 1 / (1 + 0.3275911 * a);
  const tail = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t;
  return Math.sign(x) * (1 - tail * Math.exp(-a * a));
}

const ACTIVATIONS = { gelu: (x) => 0.5 * x * (1 + erf(x * Math.SQRT1_2)), relu: (x) => Math.max(x, 0), silu };

export class Model {
  static async load(bytes, wasm) {
    const file = readSafetensors(bytes);
    return new Model(describe(file), file.tensors, await Arena.create(wasm));
  }

  constructor(about, tensors, arena) {
    this.about = about;
    this.tensors = tensors;
    this.arena = arena;
    const config = (this.config = about.config.model);
    this.spec = SPECS[about.config.task.name](about.config.task);
    this.causal = config.attention === "task" ? this.spec.causal : config.attention === "causal";
    this.conditioner = new Conditioner(config, tensors);
    this.width = up(config.dim, 8);
    this.layers = Array.from({ length: config.num_layers }, (_, i) =>
      Object.fromEntries(
        ["w_qkv", "w_out", "w_in", "w_back"].map((name) => [name, this.#matrix(tensors[`stack.layers.${i}.${name}`])]),
      ),
    );
    this.inject = tensors["stack.w_inject"] && this.#matrix(tensors["stack.w_inject"]);
    this.head = this.#matrix(tensors.head ?? tensors.embedding);
    this.outputs = this.head.n;
    this.buffers = new Map();
  }

  /** Copy a weight of shape (n, k) into memory as the matrix k by n, its rows padded to whole vectors. */
  #matrix({ data, shape: [n, k] }) {
    const stride = up(n, 8),
      at = this.arena.reserve(k * stride),
      f = this.arena.view;
    for (let i = 0; i < n; i++) for (let j = 0; j < k; j++) f[at + j * stride + i] = data[i * k + j];
    return { at, stride, n, k };
  }

  /** Return the working memory for sequences of `seq` tokens. */
  workspace(seq) {
    if (!this.buffers.has(seq)) {
      const { dim, num_heads: heads } = this.config,
        rows = up(seq, 4);
      const ff = this.layers[0].w_in.n,
        columns = up(seq, 8);
      const room = (width) => ({ at: this.arena.reserve(rows * up(width, 8)), stride: up(width, 8) });
      this.buffers.set(seq, {
        hidden: room(dim),
        qkv: room(3 * dim),
        mixed: room(dim),
        ff: room(ff),
        both: room(2 * dim),
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
    const { embedding, b_embedding: bias } = this.tensors,
      { dim, positions } = this.config;
    const vectors = this.spec.kind === "vectors",
      size = vectors ? embedding.shape[1] : 1;
    const seq = inputs.length / size,
      state = new Float32Array(seq * dim);
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
    const names = {
      scale1: "alpha1",
      scale2: "alpha2",
      gate1: "gamma1",
      gate2: "gamma2",
      shift1: "shift1",
      shift2: "shift2",
    };
    const rows = Array.from({ length: loops }, (_, t) => this.conditioner.at(t, loops)[layer]);
    return Object.fromEntries(
      Object.entries(names)
        .filter(([part]) => rows[0][part])
        .map(([part, name]) => [name, rows.map((row) => row[part])]),
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
    this.rotation =
      model.config.positions === "rotary" ? rotation(seq, model.config.dim / model.config.num_heads) : null;
  }

  /** Run one loop. With `attention`, return what every head attends to: per layer a Float32Array of heads, seq by seq. */
  step(attention = false) {
    const { model, state } = this,
      before = state.slice(),
      t = this.done;
    this.#inject(t);
    const seen = model.conditioner.at(t, this.loops).map((set, layer) => {
      const weights = this.#attend(model.layers[layer], set, attention);
      this.#feedForward(model.layers[layer], layer, set);
      return weights;
    });
    this.done += 1;
    let moved = 0,
      size = 0;
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
    const { model, seq, room } = this,
      { dim, norm } = model.config,
      { gain, b_head: bias } = model.tensors;
    this.#normalise(room.hidden, norm !== "none", gain?.data, null);
    model.multiply(room.hidden, model.head, room.out, seq);
    const f = model.arena.view,
      scores = new Float32Array(seq * model.outputs);
    for (let t = 0; t < seq; t++) {
      const from = room.out.at + t * room.out.stride;
      scores.set(f.subarray(from, from + model.outputs), t * model.outputs);
      if (bias) for (let k = 0; k < model.outputs; k++) scores[t * model.outputs + k] += bias.data[k];
    }
    return scores;
  }

  #inject(t) {
    const { model, state, embeddings, room, seq } = this,
      { dim, injection } = model.config;
    if (injection === "add") for (let i = 0; i < state.length; i++) state[i] += embeddings[i];
    if (injection === "concat") {
      const f = model.arena.view,
        { at, stride } = room.both;
      for (let row = 0; row < seq; row++) {
        f.set(state.subarray(row * dim, (row + 1) * dim), at + row * stride);
        f.set(embeddings.subarray(row * dim, (row + 1) * dim), at + row * stride + dim);
      }
      model.multiply(room.both, model.inject, room.hidden, seq);
      this.#each(room.hidden, (i, value) => {
        state[i] = value;
      });
    }
    const signal = model.conditioner.signal(t, this.loops);
    if (signal) for (let i = 0; i < state.length; i++) state[i] += signal[i % dim];
  }

  /** Write scale * state / RMS(state) + shift to a buffer. */
  #normalise({ at, stride }, rms, scale, shift) {
    const { state, seq, model } = this,
      { dim } = model.config,
      f = model.arena.view;
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
    const { dim } = this.model.config,
      f = this.model.arena.view;
    for (let t = 0; t < this.seq; t++) for (let i = 0; i < dim; i++) use(t * dim + i, f[at + t * stride + i]);
  }

  #addGated(buffer, gate, bias = null) {
    const { state } = this,
      { dim } = this.model.config;
    this.#each(buffer, (i, value) => {
      const update = bias ? value + bias[i % dim] : value;
      state[i] += gate ? gate[i % dim] * update : update;
    });
  }

  #attend(layer, { scale1, shift1, gate1 }, keep) {
    const { model, seq, room, rotation: turn } = this,
      { dim, num_heads: heads, norm, attention_weights: selection } = model.config;
    const size = dim / heads,
      { qkv, keys, scores, mixed } = room,
      { arena } = model;
    this.#normalise(room.hidden, norm !== "none", scale1, shift1);
    model.multiply(room.hidden, layer.w_qkv, qkv, seq);
    if (norm === "query-key") this.#rawValues(layer);
    const f = arena.view,
      kept = keep ? new Float32Array(heads * seq * seq) : null;
    if (turn) for (let head = 0; head < 2 * heads; head++) rotate(f, qkv, head * size, size, seq, turn);
    const sharpness = selection === "hardmax" ? 1 : 1 / Math.sqrt(size);
    for (let head = 0; head < heads; head++) {
      const query = qkv.at + head * size,
        key = query + dim,
        value = query + 2 * dim;
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
    const { model, room, seq } = this,
      { dim } = model.config,
      { at, stride } = room.qkv;
    const f = model.arena.view,
      rows = f.slice(at, at + seq * stride);
    this.#normalise(room.hidden, false, null, null);
    model.multiply(room.hidden, layer.w_qkv, room.qkv, seq);
    for (let t = 0; t < seq; t++) f.set(rows.subarray(t * stride, t * stride + 2 * dim), at + t * stride);
  }

  #feedForward(layer, number, { scale2, shift2, gate2 }) {
    const { model, seq, room } = this,
      { norm, activation } = model.config,
      act = ACTIVATIONS[activation];
    const own = (name) => model.tensors[`stack.layers.${number}.${name}`].data,
      bias = own("b_in");
    this.#normalise(room.hidden, norm === "rms", scale2, shift2);
    model.multiply(room.hidden, layer.w_in, room.ff, seq);
    const f = model.arena.view,
      { at, stride } = room.ff;
    for (let t = 0; t < seq; t++) {
      const row = at + t * stride;
      for (let i = 0; i < bias.length; i++) f[row + i] = act(f[row + i] + bias[i]);
    }
    model.multiply(room.ff, layer.w_back, room.hidden, seq);
    this.#addGated(room.hidden, gate2, own("b_back"));
  }
}

function rotation(seq, size) {
  const half = size / 2,
    cos = new Float32Array(seq * half),
    sin = new Float32Array(seq * half);
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
      const left = f[from + i],
        right = f[from + half + i],
        c = cos[t * half + i],
        s = sin[t * half + i];
      f[from + i] = left * c - right * s;
      f[from + half + i] = left * s + right * c;
    }
  }
}

/** Turn scores into weights, in place: of the first `visible` entries; the others get none. */
function softmax(row, sharpness, visible) {
  let top = -Infinity,
    sum = 0;
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
