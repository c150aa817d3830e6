// The worker that owns one model. It runs loops one after the other and reports each.

import { Model } from "./engine.mjs";
import { Fraction, ProofNetwork } from "./exact.mjs";
import { Friendly } from "./friendly.mjs";

const MOST_PROBABILITIES = 50_000; // per frame: beyond that only the likeliest answers are sent

let model = null;
let session = null;
let ticket = 0;
const proofs = new Map();
let states = [];

/** Let waiting messages in: by a channel, since a timeout would be held back to 4 ms. */
const breathe = (() => {
  const channel = new MessageChannel(),
    waiting = [];
  channel.port1.onmessage = () => waiting.shift()();
  return () =>
    new Promise((resolve) => {
      waiting.push(resolve);
      channel.port2.postMessage(null);
    });
})();

function decode(base64) {
  const text = atob(base64),
    bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

/** Turn one position's scores into probabilities, in place; return the likeliest class and the entropy in bits. */
function toProbabilities(scores) {
  let best = 0,
    sum = 0,
    entropy = 0;
  for (let k = 1; k < scores.length; k++) if (scores[k] > scores[best]) best = k;
  const top = scores[best];
  for (let k = 0; k < scores.length; k++) sum += scores[k] = Math.exp(scores[k] - top);
  for (let k = 0; k < scores.length; k++) {
    scores[k] /= sum;
    if (scores[k] > 0) entropy -= scores[k] * Math.log2(scores[k]);
  }
  return { best, entropy };
}

/** What the page learns after a loop. */
function frame(attention) {
  const values = session.read(),
    { seq } = session,
    outputs = model.outputs;
  const report = { loop: session.done, change: session.change, size: session.size, outputs, attention };
  if (model.spec.kind === "vectors") return { ...report, values };
  const classes = new Int32Array(seq),
    confidence = new Float32Array(seq),
    entropy = new Float32Array(seq);
  for (let t = 0; t < seq; t++) {
    const row = values.subarray(t * outputs, (t + 1) * outputs),
      found = toProbabilities(row);
    classes[t] = found.best;
    confidence[t] = row[found.best];
    entropy[t] = found.entropy;
  }
  const probabilities = values.length <= MOST_PROBABILITIES ? values : null;
  return { ...report, classes, confidence, entropy, probabilities };
}

const ANSWERS = {
  async load({ source, wasm }) {
    const bytes = typeof source === "string" ? decode(source) : new Uint8Array(source);
    model = await Model.load(bytes, wasm ? decode(wasm) : null);
    return { about: model.about, simd: model.arena.kernel !== null };
  },

  async run({ ticket: mine, inputs, from, loops, attention }) {
    ticket = mine;
    const rescaled = model.config.extrapolation === "rescale" && loops > model.config.num_loops;
    if (!session || session.ticket !== mine || session.done !== from || rescaled) {
      session = model.start(inputs, loops);
      session.ticket = mine;
      while (session.done < from) session.step();
    }
    while (session.done < loops) {
      const seen = session.step(attention);
      postMessage({ kind: "frame", ticket: mine, frame: frame(seen) });
      await breathe();
      if (ticket !== mine) return { ended: true };
    }
    return { ended: false };
  },

  stop({ ticket: theirs }) {
    if (ticket === theirs) ticket = null;
  },

  /** Keep a network of a proof under a name. */
  proof({ name, network, texts }) {
    if (!proofs.has(name)) proofs.set(name, new ProofNetwork(network, texts));
    return { rows: proofs.get(name).rows };
  },

  /** Run a network of a proof on tokens (fractions as text); `keep` the states for a closer look. */
  proofTrace({ name, tokens, keep }) {
    const trace = proofs.get(name).trace(tokens.map((token) => [Fraction.parse(token)]));
    if (keep) states = trace;
    return {
      outputs: trace.map(({ outputs }) => outputs.map(([value]) => value.toNumber())),
      weights: keep
        ? trace.map(({ weights }) => weights.map((head) => head.map((row) => row.map((weight) => weight.toNumber()))))
        : null,
    };
  },

  /** Return every row of every token after a loop, exactly. */
  proofRows: ({ loop }) => ({
    rows: (states[loop] ?? states.at(-1)).state.map((token) => token.map(String)),
    outputs: (states[loop] ?? states.at(-1)).outputs.map((values) => values.map(String)),
  }),

  modulation: ({ loops, layer }) => ({ tables: model.modulation(loops, layer), parts: model.conditioner.parts }),
};

onmessage = async ({ data: { kind, call, ...request } }) => {
  try {
    postMessage({ kind: "answer", call, answer: await ANSWERS[kind](request) });
  } catch (error) {
    const message = error instanceof Friendly ? error.message : `The model could not be run: ${error.message}`;
    postMessage({ kind: "failure", call, message });
  }
};
