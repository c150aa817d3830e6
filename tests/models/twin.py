"""An independent implementation of the models in NumPy and float64, from the formulas of Sections 2 and 4.2.

Every function is analytic in its parameters, so complex arrays give derivatives (complex-step method). The imaginary
part of f(p + ihv) is h times the derivative of f at p along v, and h = 1e-30 avoids rounding errors. Parameters are in
a dict under the paper's names. Tokens are rows, so a map W of the paper reads x @ W.T.
"""

import math

import numpy as np

STEP = 1e-30


def erf(x):
    real = np.vectorize(math.erf)(x.real)
    return real + 1j * x.imag * (2 / math.sqrt(math.pi)) * np.exp(-(x.real**2)) if np.iscomplexobj(x) else real


def silu(x):
    return x / (1 + np.exp(-x))


ACTIVATIONS = {
    "gelu": lambda x: x * (1 + erf(x / math.sqrt(2))) / 2,
    "relu": lambda x: x * (x.real > 0),
    "silu": silu,
}


def softmax(scores):
    powers = np.exp(scores - scores.real.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def encoding(t, dim):
    """Return PE(t): sine and cosine of t / 10000^(2i/d), side by side."""
    result = np.empty(dim)
    for i in range(dim // 2):
        angle = t / 10000 ** (2 * i / dim)
        result[2 * i], result[2 * i + 1] = math.sin(angle), math.cos(angle)
    return result


def over_rms(x, config):
    """Return x / RMS(x) as printed, with nothing added under the root."""
    return x if config.norm == "none" else x / np.sqrt((x**2).mean(axis=-1, keepdims=True))


def rotated(x):
    """Apply rotary positions: rotate the pair (i, i + s/2) at position n by n / 10000^(2i/s)."""
    seq_len, size = x.shape[-2:]
    result = np.empty_like(x)
    for n in range(seq_len):
        for i in range(size // 2):
            cos, sin = math.cos(n / 10000 ** (2 * i / size)), math.sin(n / 10000 ** (2 * i / size))
            a, b = x[..., n, i], x[..., n, i + size // 2]
            result[..., n, i], result[..., n, i + size // 2] = a * cos - b * sin, a * sin + b * cos
    return result


def hardmax(scores):
    """Return equal weights on the largest scores, the limit of softmax for growing scores."""
    largest = scores.real == scores.real.max(axis=-1, keepdims=True)
    return largest / largest.sum(axis=-1, keepdims=True)


def attention(x, valued, p, config, causal):
    """Return the sum over heads of W_O W_V X softmax((W_K X)^T W_Q X / sqrt(s)). Heads are blocks of s rows or columns.

    `valued` is what W_V maps: x itself, or the state before its norm.
    """
    size = config.dim // config.num_heads
    result = np.zeros_like(x)
    for head in range(config.num_heads):
        rows = slice(head * size, (head + 1) * size)
        query, key, value = x @ p["W_Q"][rows].T, x @ p["W_K"][rows].T, valued @ p["W_V"][rows].T
        if config.positions == "rotary":
            query, key = rotated(query), rotated(key)
        scores = query @ key.swapaxes(-1, -2) / math.sqrt(size)
        if causal:
            later = np.triu(np.ones(scores.shape[-2:], dtype=bool), k=1)
            scores = np.where(later, -np.inf, scores)
        weights = softmax(scores) if config.attention_weights == "softmax" else hardmax(scores)
        result = result + weights @ value @ p["W_O"][:, rows].T
    return result


def feed_forward(x, p, config):
    hidden = ACTIVATIONS[config.activation](x @ p["W_1"].T + p["b_1"])
    return hidden @ p["W_2"].T + p["b_2"]


# The vectors that depend on t, in the order in which they are cut from one long vector; beta shifts after alpha.
SET_BY = {
    "none": (),
    "additive": (),
    "timestep": ("alpha_1", "alpha_2", "gamma_1", "gamma_2"),
    "static": ("alpha_1", "alpha_2", "gamma_1", "gamma_2"),
    "table": ("alpha_1", "alpha_2", "gamma_1", "gamma_2"),
    "scale": ("alpha_1", "alpha_2"),
    "gate": ("gamma_1", "gamma_2"),
    "shift": ("alpha_1", "alpha_2", "gamma_1", "gamma_2", "beta_1", "beta_2"),
    "eta": ("gamma_2",),
}


def loop_time(t, num_loops, config):
    """Return the time of loop t of `num_loops`. The policy applies only beyond the trained loops."""
    trained = config.num_loops
    if num_loops <= trained:
        return t
    return {"extend": t, "clamp": min(t, trained - 1), "rescale": t * trained / num_loops}[config.extrapolation]


def conditioned(time, layer, p, config):
    """Return scales, gates and shifts of one layer at one time."""
    conditioning = config.resolved_conditioning
    vectors = {"alpha_1": 1, "alpha_2": 1, "gamma_1": 1, "gamma_2": 1, "beta_1": 0, "beta_2": 0} | p["layers"][layer]
    if not SET_BY[conditioning]:
        return vectors
    if conditioning == "static":
        row = p["vectors"][layer]
    elif conditioning in ("table", "eta"):
        table = p["table"][:, layer]
        low, share = int(time), time - int(time)
        row = (1 - share) * table[low] + share * table[min(low + 1, len(table) - 1)]
    else:
        timestep = p["W_3"] @ silu(p["W_4"] @ encoding(time, config.dim) + p["b_4"]) + p["b_3"]
        row = p["W_5"][layer] @ silu(timestep) + p["b_5"][layer]
    names = SET_BY[conditioning]
    return vectors | dict(zip(names, np.split(row, len(names)), strict=True))


def block(x, time, layer, p, config, causal):
    """Return TF(X, t) = X' + gamma_2 FF(RMSN_2(X', t)), where X' = X + gamma_1 Attn(RMSN_1(X, t))."""
    v = conditioned(time, layer, p, config)
    partly = config.norm == "query-key"  # no norm before the values and the feed-forward layer
    first = v["alpha_1"] * over_rms(x, config) + v["beta_1"]
    x = x + v["gamma_1"] * attention(first, x if partly else first, v, config, causal)
    second = v["alpha_2"] * (x if partly else over_rms(x, config)) + v["beta_2"]
    return x + v["gamma_2"] * feed_forward(second, v, config)


def embed(inputs, p, config, spec):
    seq_len = inputs.shape[1]
    x = p["E"][inputs] if spec.kind == "tokens" else inputs @ p["E"].T + p["b_E"]
    if config.positions == "learned":
        x = x + p["positions"][0][:seq_len]
    elif config.positions == "sinusoidal":  # with the root mean square of a new token, 0.02
        x = x + 0.02 * math.sqrt(2) * np.stack([encoding(n, config.dim) for n in range(seq_len)])
    elif config.positions == "coordinates":
        for table, ids in zip(p["positions"], spec.coordinates, strict=True):
            x = x + table[list(ids[:seq_len])]
    return x


def read_out(x, p, config):
    return (p.get("alpha_out", 1) * over_rms(x, config)) @ p.get("head", p["E"]).T + p.get("b_head", 0)


def answers(p, config, spec, inputs, num_loops):
    """Return the read-out after every loop. With an injection, x starts at 0 and every loop adds the embedding."""
    causal = spec.causal if config.attention == "task" else config.attention == "causal"
    e = embed(inputs, p, config, spec)
    x = e if config.injection == "none" else np.zeros_like(e)
    result = []
    for t in range(num_loops):
        time = loop_time(t, num_loops, config)
        if config.injection == "add":
            x = x + e
        elif config.injection == "concat":
            x = np.concatenate((x, e), axis=-1) @ p["W_inject"].T
        if config.resolved_conditioning == "additive":
            x = x + p["amplitude"] * encoding(time, config.dim)
        for layer in range(config.num_layers):
            x = block(x, time, layer, p, config, causal)
        result.append(read_out(x, p, config))
    return result
