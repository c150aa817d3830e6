// The networks of the proofs in exact arithmetic: fractions of whole numbers of any length, as `looped.theory` has them.

const gcd = (a, b) => {
  while (b) [a, b] = [b, a % b];
  return a < 0n ? -a : a;
};

/** A fraction in lowest terms. */
export class Fraction {
  constructor(over, under = 1n) {
    this.over = over;
    this.under = under;
  }

  static of(over, under) {
    if (under === 1n) return new Fraction(over);
    const sign = under < 0n ? -1n : 1n,
      common = gcd(over, under) * sign;
    return new Fraction(over / common, under / common);
  }

  static parse(text) {
    const [over, under = "1"] = text.split("/");
    return Fraction.of(BigInt(over), BigInt(under));
  }

  /** A number of float64 is a fraction: return it as it is. */
  static fromNumber(number) {
    let under = 1n;
    while (!Number.isInteger(number)) {
      number *= 2;
      under *= 2n;
    }
    return Fraction.of(BigInt(number), under);
  }

  plus(other) {
    if (this.under === other.under) return Fraction.of(this.over + other.over, this.under);
    return Fraction.of(this.over * other.under + other.over * this.under, this.under * other.under);
  }

  times(other) {
    return Fraction.of(this.over * other.over, this.under * other.under);
  }

  get positive() {
    return this.over > 0n;
  }

  equals(other) {
    return this.over === other.over && this.under === other.under;
  }

  above(other) {
    return this.over * other.under > other.over * this.under;
  }

  toNumber() {
    const over = Number(this.over),
      under = Number(this.under);
    if (Number.isFinite(over) && Number.isFinite(under)) return over / under;
    const shift = BigInt(Math.max(String(this.over).length, String(this.under).length) * 4 - 900);
    return Number(this.over >> shift) / Number(this.under >> shift);
  }

  toString() {
    return this.under === 1n ? String(this.over) : `${this.over}/${this.under}`;
  }
}

const ZERO_FRACTION = new Fraction(0n);

/** Read a form's text: its constant, then pairs of a name and its coefficient. */
function readForm(text, places) {
  const [constant, ...rest] = text.split(" "),
    terms = [];
  for (let i = 0; i < rest.length; i += 2) terms.push([places.get(rest[i]), Fraction.parse(rest[i + 1])]);
  return { constant: Fraction.parse(constant), terms };
}

const at = ({ constant, terms }, values) => {
  let total = constant;
  for (const [place, factor] of terms) if (values[place].over !== 0n) total = total.plus(factor.times(values[place]));
  return total;
};

/** A network of a proof: encode, then the same block in every loop, then decode. */
export class ProofNetwork {
  constructor(data, texts) {
    this.rows = Object.keys(data.encode);
    this.loops = data.loops;
    const rows = new Map(this.rows.map((name, i) => [name, i])),
      inputs = new Map(data.inputs.map((name, i) => [name, i]));
    const hidden = new Map(data.units.map((_, i) => [`h${i}`, i]));
    const form = (places) => (number) => readForm(texts[number], places);
    this.encode = Object.values(data.encode).map(form(inputs));
    this.units = data.units.map(form(rows));
    this.updates = Object.entries(data.updates).map(([name, number]) => [rows.get(name), form(hidden)(number)]);
    this.heads = data.heads.map(([value, key, query, into]) => ({
      value: form(rows)(value),
      key: form(rows)(key),
      query: form(rows)(query),
      into: rows.get(into),
    }));
    this.decode = data.decode.map(form(rows));
    this.modulation = new Map(
      Object.entries(data.modulation).map(([name, numbers]) => [
        rows.get(name),
        numbers.map((n) => Fraction.parse(texts[n])),
      ]),
    );
  }

  /** Return the state of every token before the first loop and after each: {state, weights of each head, output}. */
  trace(tokens) {
    let state = tokens.map((token) => this.encode.map((form) => at(form, token)));
    const states = [this.#snapshot(state, [])];
    for (let t = 0; t < this.loops; t++) {
      const heard = this.heads.map((head) => this.#attend(head, state));
      heard.forEach(({ fetched }, h) =>
        fetched.forEach((value, i) => {
          const { into } = this.heads[h];
          state[i][into] = state[i][into].plus(value);
        }),
      );
      state = state.map((token) => {
        const hidden = this.units.map((unit) => {
          const value = at(unit, token);
          return value.positive ? value : ZERO_FRACTION;
        });
        const next = token.slice();
        for (const [row, form] of this.updates) {
          const change = at(form, hidden),
            scale = this.modulation.get(row)?.[t];
          next[row] = next[row].plus(scale ? change.times(scale) : change);
        }
        return next;
      });
      states.push(
        this.#snapshot(
          state,
          heard.map(({ weights }) => weights),
        ),
      );
    }
    return states;
  }

  #snapshot(state, weights) {
    return {
      state: state.map((token) => token.slice()),
      weights,
      outputs: state.map((token) => this.decode.map((form) => at(form, token))),
    };
  }

  /** Hard attention: all weight on the largest scores, in equal shares where several are largest. */
  #attend({ value, key, query }, state) {
    const keys = state.map((token) => at(key, token)),
      values = state.map((token) => at(value, token));
    const weights = state.map((token) => {
      const asked = at(query, token),
        scores = keys.map((each) => each.times(asked));
      const best = scores.reduce((a, b) => (b.above(a) ? b : a)),
        winners = scores.filter((score) => score.equals(best)).length;
      return scores.map((score) => (score.equals(best) ? Fraction.of(1n, BigInt(winners)) : ZERO_FRACTION));
    });
    const fetched = weights.map((row) =>
      row.reduce((sum, weight, j) => sum.plus(weight.times(values[j])), ZERO_FRACTION),
    );
    return { weights, fetched };
  }
}

/** The functions that the networks imitate: from the tokens, as numbers, to one value per token. */
export const TARGETS = {
  mean: (x) => x.map(() => x.reduce((a, b) => a + b) / x.length),
  prod: (x) => x.map(() => x.reduce((a, b) => a * b)),
  max: (x) => x.map((own) => Math.max(...x) - own / 2),
  attn: (x) =>
    x.map((own) => {
      const weights = x.map((other) => Math.exp(4 * own * other)),
        all = weights.reduce((a, b) => a + b);
      return x.reduce((sum, other, j) => sum + weights[j] * other, 0) / all;
    }),
  wave: (x) => x.map((own) => Math.sin(3 * own + 2 * x.reduce((a, b) => a + b))),
};
