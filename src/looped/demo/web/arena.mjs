// Memory and matrix products for one model: by WebAssembly SIMD (matmul.wat), or in plain JavaScript.

export const up = (size, multiple) => Math.ceil(size / multiple) * multiple;

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
    const whole = this.kernel ? n - (n % 8) : 0;
    if (whole) this.kernel(4 * x, 4 * xStride, 4 * w, 4 * wStride, 4 * y, 4 * yStride, up(m, 4), k, whole);
    if (whole < n) plainMatmul(this.view, x, xStride, w + whole, wStride, y + whole, yStride, m, k, n - whole);
  }
}

function plainMatmul(f, x, xStride, w, wStride, y, yStride, m, k, n) {
  for (let i = 0; i < m; i++) {
    const from = x + i * xStride,
      to = y + i * yStride;
    let j = 0;
    for (; j + 4 <= n; j += 4) {
      let s0 = 0,
        s1 = 0,
        s2 = 0,
        s3 = 0;
      for (let l = 0, at = w + j; l < k; l++, at += wStride) {
        const value = f[from + l];
        s0 += value * f[at];
        s1 += value * f[at + 1];
        s2 += value * f[at + 2];
        s3 += value * f[at + 3];
      }
      f[to + j] = s0;
      f[to + j + 1] = s1;
      f[to + j + 2] = s2;
      f[to + j + 3] = s3;
    }
    for (; j < n; j++) {
      let sum = 0;
      for (let l = 0, at = w + j; l < k; l++, at += wStride) sum += f[from + l] * f[at];
      f[to + j] = sum;
    }
  }
}
