// What scales the block in loop t, as src/looped/models/conditioning.py has it.

export const silu = (x) => x / (1 + Math.exp(-x));

export function sinusoid(value, dim) {
  const encoding = new Float32Array(dim);
  for (let i = 0; i < dim; i += 2) {
    const angle = value * 10000 ** (-i / dim);
    encoding[i] = Math.sin(angle);
    encoding[i + 1] = Math.cos(angle);
  }
  return encoding;
}

/** W x + b for one vector; `rows` of W from `first` on. */
export function affine({ data, shape }, bias, x, first = 0, rows = shape.at(-2)) {
  const inner = shape.at(-1);
  return Float32Array.from({ length: rows }, (_, i) => {
    let sum = bias ? bias.data[first + i] : 0;
    for (let j = 0; j < inner; j++) sum += data[(first + i) * inner + j] * x[j];
    return sum;
  });
}

const SCALES = ["scale1", "scale2"],
  GATES = ["gate1", "gate2"],
  SHIFTS = ["shift1", "shift2"];
/** What a conditioning sets, in the order of its vectors; 1 is attention, 2 the feed-forward layer. */
const PARTS = {
  none: [],
  additive: [],
  timestep: [...SCALES, ...GATES],
  static: [...SCALES, ...GATES],
  table: [...SCALES, ...GATES],
  scale: SCALES,
  gate: GATES,
  shift: [...SCALES, ...GATES, ...SHIFTS],
  eta: ["gate2"],
};

/** Makes what scales each layer in loop t: {scale1, shift1, gate1, scale2, shift2, gate2}, null where nothing does. */
export class Conditioner {
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
    return extrapolation === "clamp" ? Math.min(t, trained - 1) : (t * trained) / loops;
  }

  at(t, loops) {
    const time = this.time(t, loops);
    if (!this.cache.has(time)) this.cache.set(time, this.make(time));
    return this.cache.get(time);
  }

  make(time) {
    const { dim, num_layers: layers } = this.config,
      own = (name) => this.tensors[`stack.conditioner.${name}`];
    let vectors = null;
    if (own("w5")) {
      const hidden = affine(own("w4"), own("b4"), sinusoid(time, dim)).map(silu);
      const encoding = affine(own("w3"), own("b3"), hidden).map(silu);
      vectors = (layer, size) => affine(own("w5"), own("b5"), encoding, layer * size, size);
    } else if (own("vectors")) {
      vectors = (layer, size) => own("vectors").data.subarray(layer * size, (layer + 1) * size);
    } else if (own("rows")) {
      const { data, shape } = own("rows"),
        below = Math.min(Math.floor(time), shape[0] - 1);
      const above = Math.min(below + 1, shape[0] - 1),
        share = time - below;
      vectors = (layer, size) =>
        Float32Array.from({ length: size }, (_, i) => {
          const low = data[(below * layers + layer) * size + i];
          return low + share * (data[(above * layers + layer) * size + i] - low);
        });
    }
    return Array.from({ length: layers }, (_, layer) => {
      const gains = (name) => this.tensors[`stack.layers.${layer}.${name}`]?.data ?? null;
      const set = { scale1: gains("gain_attention"), scale2: gains("gain_feed_forward") };
      if (vectors) {
        const all = vectors(layer, this.parts.length * dim);
        this.parts.forEach((part, i) => {
          set[part] = all.subarray(i * dim, (i + 1) * dim);
        });
      }
      return set;
    });
  }

  signal(t, loops) {
    const amplitude = this.tensors["stack.signal.amplitude"]?.data;
    return amplitude ? sinusoid(this.time(t, loops), this.config.dim).map((x, i) => x * amplitude[i]) : null;
  }
}
