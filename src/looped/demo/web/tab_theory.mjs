// Theory: the networks that the proofs construct, run exactly, beside the functions that they approximate.

import { legend, lineChart, sizeIn } from "./charts.mjs";
import { Thread } from "./client.mjs";
import { Fraction, TARGETS } from "./exact.mjs";
import { counted, el, help, menu, Player, short, wholeNumber } from "./ui.mjs";

const VARIANTS = {
  paper: "the paper's network, corrected",
  modulated: "modulated, Appendix B",
  lean: "lean: fewer labels",
  "lean-stream": "lean, labels as a bit stream",
  "lean-horner": "lean, no giant weights",
  "lean-multiset": "lean, equal tokens too",
  "modulated-minimal": "modulated, smallest",
  "modulated-sqrt": "modulated, square root of the loops",
  "modulated-sqrt-multiset": "modulated, square root, equal tokens too",
  "modulated-digits": "modulated, for bfloat16",
};
const TOKEN_COLOURS = ["var(--looped)", "var(--modulated)", "var(--good)"];
const PLOT = { left: 44, right: 12, top: 10, bottom: 26 };
const STRIP_WIDTH = 0.014; // drawn; the true width is epsilon, far below a pixel
const STEPS = 512; // of a token's slider

async function unpack(base64) {
  const bytes = Uint8Array.from(atob(base64), (mark) => mark.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

const sentence = (text) => text[0].toUpperCase() + text.slice(1);
const LONG = 16; // characters of an exact number
const brief = (text) =>
  text.length <= LONG ? text : `≈ ${short(Fraction.parse(text).toNumber())}, ${text.length} digits`;

export class TheoryTab {
  chosen = { function: "attn", tokens: 2, cells: 4, variant: "paper", fault: "" };
  inputs = [150, 400, 60]; // of STEPS
  inStrip = false;
  ticket = 0;
  rowTicket = 0;

  constructor(root) {
    this.root = root;
    this.thread = new Thread();
    this.player = new Player({
      trained: 1,
      onChange: () => this.draw(),
      onMore: () => {},
      describe: () => `${this.plotText.textContent} ${this.fetchText.textContent}`,
    });
    this.player.more.hidden = true;
    this.note = el("p.note", { role: "status" });
    this.menus = el("div.toolbar");
    this.sliders = el("div.sliders");
    this.plotRoom = el("div");
    this.plotText = el("p.soft");
    this.fetchRoom = el("div");
    this.fetchText = el("p.soft");
    this.growth = el("div");
    this.rows = el("div.exact", { tabindex: 0, role: "group", "aria-label": "All rows" });
    this.size = el("p.soft.source");
    this.faults = el("details.faults");
    this.faultSummary = el("summary");
    const tile = (title, ...content) => el("article.card", {}, el("header", {}, el("h2.plain", {}, title)), ...content);
    root.append(
      this.menus,
      this.size,
      this.sliders,
      this.faults,
      this.note,
      el(
        "div.tiles",
        {},
        tile("f beside the network", this.plotRoom, this.plotText),
        tile("The answer, loop by loop", this.growth),
        tile("Who fetches from whom", this.fetchRoom, this.fetchText),
        tile("Every row, exactly", this.rows),
      ),
      this.player.element,
      help(
        "The paper proves that looped Transformers approximate any continuous function of a sequence that does not depend on the order of its tokens. Its proof is a network, and here it runs: step 1 finds the cell of every token, step 2 lets the tokens fetch each other one by one until each knows its context, step 3 unpacks the label that is stored for the cell and the context, one loop per label.",
        "The network knows of each token only its cell, and its labels are the values of f for tokens in the middle of their cells. So its output is a staircase that comes closer to f with more cells.",
        "Everything is computed in exact fractions. In the narrow strips just below a cell's border (drawn much wider than they are) a token's cell is undecided and the network may answer anything between its labels. The paper's network as printed has mistakes; each can be switched on to see what it breaks.",
      ),
    );
  }

  async open(state) {
    if (typeof DecompressionStream === "undefined") {
      this.note.textContent = "This browser cannot unpack the networks. A newer one can.";
      return;
    }
    this.data ??= await unpack(document.getElementById("theory-data").textContent.trim());
    if (!this.boxes) this.#faultSwitches();
    const { f, n, t, v, bug, x, loop } = state;
    const wanted = {
      function: f,
      tokens: Number(t) || undefined,
      cells: Number(n) || undefined,
      variant: v,
      fault: bug,
    };
    for (const [key, value] of Object.entries(wanted)) if (value !== undefined) this.chosen[key] = value;
    if (x)
      this.inputs = x
        .split(" ")
        .map((each, i) => Math.max(0, Math.min(STEPS, Math.round(Number(each)) || this.inputs[i])));
    while (this.inputs.length < 3) this.inputs.push(60);
    await this.choose({}, wholeNumber(loop, 0, Infinity));
  }

  state() {
    const { function: f, tokens, cells, variant, fault } = this.chosen;
    return {
      f,
      t: tokens,
      n: cells,
      v: variant,
      bug: fault,
      x: this.inputs.slice(0, tokens).join(" "),
      loop: this.player.loop,
    };
  }

  has({ function: f, tokens, cells, variant, fault }) {
    return [f, tokens, cells, variant, ...(fault ? [fault] : [])].join("/") in this.data.networks;
  }

  get name() {
    const { function: f, tokens, cells, variant, fault } = this.chosen;
    return [f, tokens, cells, variant, ...(fault ? [fault] : [])].join("/");
  }

  /** Change what is chosen; fall back to what there is. */
  async choose(change, loop = null) {
    const wanted = { ...this.chosen, ...change };
    if (!this.has(wanted)) wanted.fault = "";
    if (!this.has(wanted)) wanted.cells = [4, 3, 2].find((cells) => this.has({ ...wanted, cells })) ?? 2;
    if (!this.has(wanted)) Object.assign(wanted, { function: "attn", tokens: 2, cells: 4, variant: "paper" });
    this.chosen = wanted;
    this.#menus();
    this.#drawFaults();
    this.network = this.data.networks[this.name];
    await this.#load(this.name);
    this.player.setTrained(this.network.loops, this.network.loops);
    const name = this.chosen.fault
      ? "The paper's network with one printed fault"
      : sentence(VARIANTS[this.chosen.variant]);
    this.size.textContent = `${name}: ${counted(Object.keys(this.network.encode).length, "row")}, ${counted(this.network.heads.length, "head")}, width ${this.network.units.length}, ${counted(this.network.loops, "loop")}.`;
    await this.compute(loop ?? this.network.loops);
  }

  async #load(key) {
    await this.thread.call("proof", { name: key, network: this.data.networks[key], texts: this.data.forms });
  }

  #menus() {
    const { chosen } = this,
      all = (values, key, text) =>
        values
          .filter((value) => this.has({ ...chosen, [key]: value, fault: "" }))
          .map((value) => [String(value), text(value)]);
    const pick = (label, options, key, read = String) =>
      menu(label, options, String(chosen[key]), (value) => this.choose({ [key]: read(value) }));
    const strip = el("input", {
      type: "checkbox",
      id: "in-strip",
      onchange: () => {
        this.inStrip = strip.checked;
        this.compute(this.player.loop);
      },
    });
    strip.checked = this.inStrip;
    this.menus.replaceChildren(
      pick(
        "Function",
        Object.entries(this.data.functions).map(([name, text]) => [name, `f: ${text}`]),
        "function",
      ),
      pick(
        "Tokens",
        all([2, 3], "tokens", (count) => `${count} tokens`),
        "tokens",
        Number,
      ),
      pick(
        "Cells",
        all([2, 3, 4, 6, 8], "cells", (count) => `${count} cells`),
        "cells",
        Number,
      ),
      pick(
        "Construction",
        all(Object.keys(VARIANTS), "variant", (name) => VARIANTS[name]),
        "variant",
      ),
      el("label.switch", { for: "in-strip" }, strip, " Token 1 in a strip"),
    );
    this.sliders.replaceChildren(
      ...Array.from({ length: chosen.tokens }, (_, i) => {
        const output = el("output", {}, (this.inputs[i] / STEPS).toFixed(3));
        const slider = el("input", {
          type: "range",
          min: 0,
          max: STEPS,
          value: this.inputs[i],
          "aria-label": `Token ${i + 1}`,
          oninput: () => {
            this.inputs[i] = Number(slider.value);
            output.textContent = (this.inputs[i] / STEPS).toFixed(3);
            this.compute(this.player.loop);
          },
        });
        return el("label", { style: { "--own": TOKEN_COLOURS[i] } }, el("b", {}, `x${"₁₂₃"[i]}`), slider, output);
      }),
    );
  }

  /** Make a switch for each fault of the paper's network as printed; one can be on at a time. */
  #faultSwitches() {
    this.boxes = Object.keys(this.data.faults).map((fault) =>
      el("input", {
        type: "checkbox",
        role: "switch",
        value: fault,
        onchange: ({ target }) => this.choose({ fault: target.checked ? fault : "" }),
      }),
    );
    const rows = this.boxes.map((box) => el("label.switch", {}, box, this.data.faults[box.value]));
    this.faults.replaceChildren(this.faultSummary, el("div.switches", {}, rows));
  }

  #drawFaults() {
    const { fault } = this.chosen;
    this.faults.hidden = !this.has({ ...this.chosen, fault: this.boxes[0].value });
    for (const box of this.boxes) box.checked = box.value === fault;
    this.faultSummary.textContent = fault
      ? `Printed fault: ${this.data.faults[fault]}`
      : `Switch on one of the printed proof's ${this.boxes.length} faults`;
  }

  /** Return a token as a fraction: 1 belongs to the last cell, as that one's corner. */
  #fraction(step) {
    const { cells } = this.chosen;
    return step >= STEPS ? `${cells - 1}/${cells}` : `${step}/${STEPS}`;
  }

  /** Return the middle of the strip below the cell border number k: k/n - epsilon/2. */
  #strip(k) {
    const { cells } = this.chosen,
      [over, under] = this.network.epsilon.split("/").map(BigInt);
    return `${BigInt(k) * 2n * under - BigInt(cells) * over}/${BigInt(cells) * 2n * under}`;
  }

  tokens() {
    const all = this.inputs.slice(0, this.chosen.tokens).map((step) => this.#fraction(step));
    if (this.inStrip) {
      const border = Math.max(1, Math.round((this.inputs[0] / STEPS) * this.chosen.cells));
      all[0] = this.#strip(border);
    }
    return all;
  }

  values() {
    return this.tokens().map((text) => {
      const [over, under] = text.split("/");
      return Number(over) / Number(under);
    });
  }

  /** Run the network for the chosen tokens, then for each cell and strip of the first one. */
  async compute(loop) {
    const mine = ++this.ticket,
      { name: key } = this,
      tokens = this.tokens(),
      { cells, fault } = this.chosen;
    const trace = await this.thread.call("proofTrace", { name: key, tokens, keep: true });
    if (mine !== this.ticket) return;
    this.trace = trace;
    const corrected = key.split("/").slice(0, 4).join("/");
    if (fault) await this.#load(corrected);
    this.curve = { cells: Array(cells).fill(null), strips: Array(cells).fill(null), right: Array(cells).fill(null) };
    this.player.reach(this.network.loops);
    this.player.show(Math.min(loop, this.network.loops));
    const run = async (name, first) =>
      (await this.thread.call("proofTrace", { name, tokens: [first, ...tokens.slice(1)] })).outputs;
    for (let k = 0; k < cells; k++) {
      const middle = `${2 * k + 1}/${2 * cells}`,
        found = await run(key, middle);
      if (mine !== this.ticket) return;
      this.curve.cells[k] = found;
      if (fault) this.curve.right[k] = await run(corrected, middle);
      this.curve.strips[k] = await run(key, this.#strip(k + 1));
      if (mine !== this.ticket) return;
      this.draw();
    }
  }

  show() {
    this.draw();
  }

  draw() {
    if (!this.trace) return;
    this.#drawPlot();
    this.#drawGrowth();
    this.#drawFetch();
    this.#drawRows();
  }

  /** Return the step that a loop belongs to, and in words what it does. */
  #phase(loop) {
    const { cells, tokens, variant } = this.chosen,
      early = variant === "paper" || variant === "modulated" ? 1 : 0;
    const first = cells - 1,
      second = first + tokens + early;
    if (loop <= 0) return { step: 0, text: "the tokens are encoded" };
    if (loop <= first) return { step: 1, text: "step 1 finds the tokens' cells" };
    if (loop <= second) return { step: 2, text: "step 2 gathers the context" };
    return { step: 3, text: "step 3 unpacks the label" };
  }

  #drawPlot() {
    const { width: WIDTH, height: HEIGHT } = sizeIn(this.plotRoom),
      { left: LEFT, right: RIGHT, top: TOP, bottom: BOTTOM } = PLOT,
      { cells, tokens, function: name } = this.chosen,
      f = TARGETS[name],
      others = this.values().slice(1),
      { loop } = this.player;
    const value = (x) => f([x, ...others])[0],
      samples = Array.from({ length: 121 }, (_, i) => [i / 120, value(i / 120)]);
    const steps = this.curve.cells.map((outputs) => outputs?.[loop][0]),
      strips = this.curve.strips.map((outputs) => outputs?.[loop][0]);
    const right = this.curve.right.map((outputs) => outputs?.at(-1)[0]);
    const fixed = [
      ...samples.map(([, v]) => v),
      ...this.curve.cells.flatMap((outputs) => (outputs ? [outputs.at(-1)[0], outputs[0][0]] : [])),
      ...right.filter((v) => v !== undefined),
    ].filter((v) => Math.abs(v) < 50);
    const low = Math.min(...fixed),
      high = Math.max(...fixed),
      room = Math.max(high - low, 0.2) * 0.08;
    const clamp = (v) => Math.max(low - room, Math.min(high + room, v));
    const x = (v) => LEFT + (WIDTH - LEFT - RIGHT) * v,
      y = (v) => HEIGHT - BOTTOM - ((HEIGHT - TOP - BOTTOM) * (clamp(v) - low + room)) / (high - low + 2 * room);
    const path = (points) =>
      points.map(([a, b], i) => `${i ? "L" : "M"}${x(a).toFixed(1)} ${y(b).toFixed(1)}`).join("");
    const stairs = (values, kind) =>
      values.map((v, k) =>
        v === undefined || v === null
          ? null
          : el(`path.${kind}`, {
              d: path([
                [k / cells, v],
                [(k + 1) / cells - STRIP_WIDTH, v],
              ]),
            }),
      );
    const here = this.values()[0],
      now = this.trace.outputs[loop][0];
    const label = `f and the network's output after loop ${loop}, over the first token, with ${cells} cells`;
    const svg = el(
      "svg.plot",
      { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label },
      Array.from({ length: cells }, (_, k) =>
        el("rect.trifle", {
          x: x((k + 1) / cells - STRIP_WIDTH),
          width: x(STRIP_WIDTH) - x(0),
          y: TOP,
          height: HEIGHT - TOP - BOTTOM,
        }),
      ),
      Array.from({ length: cells + 1 }, (_, k) =>
        el("line.cellline", { x1: x(k / cells), x2: x(k / cells), y1: TOP, y2: HEIGHT - BOTTOM }),
      ),
      Array.from({ length: cells + 1 }, (_, k) =>
        el(
          "text",
          { x: x(k / cells), y: HEIGHT - 11, "text-anchor": "middle" },
          k === 0 || k === cells ? String(k / cells) : `${k}/${cells}`,
        ),
      ),
      [low, high].map((v) => el("text", { x: LEFT - 6, y: y(v) + 4, "text-anchor": "end" }, short(v))),
      el("path.f", { d: path(samples) }),
      stairs(right, "right"),
      stairs(steps, "net"),
      strips.map((v, k) =>
        v === undefined ? null : el("circle.instrip", { cx: x((k + 1) / cells - STRIP_WIDTH / 2), cy: y(v), r: 2.6 }),
      ),
      el("line.own", { x1: x(here), x2: x(here), y1: TOP, y2: HEIGHT - BOTTOM }),
      el("circle.dot", { cx: x(here), cy: y(now), r: 5 }),
    );
    svg.addEventListener("pointerdown", (event) => {
      const box = svg.getBoundingClientRect(),
        at = (((event.clientX - box.left) / box.width) * WIDTH - LEFT) / (WIDTH - LEFT - RIGHT);
      this.inputs[0] = Math.max(0, Math.min(STEPS, Math.round(at * STEPS)));
      this.#menus();
      this.compute(this.player.loop);
    });
    const keys = [
      { name: "f", colour: "var(--soft)" },
      { name: "the network", colour: "var(--looped)" },
      { name: "in a strip", colour: "var(--modulated)" },
      ...(this.chosen.fault ? [{ name: "corrected", colour: "var(--good)" }] : []),
    ];
    this.plotRoom.replaceChildren(svg, legend(keys));
    const goal = value(here);
    this.plotText.textContent = `Over x₁, the other ${tokens > 2 ? "tokens" : "token"} fixed. At the mark f is ${short(goal)} and the network says ${short(now)} after loop ${loop}${loop < this.network.loops ? "" : `: off by ${short(Math.abs(goal - now))}`}.${this.#damage()}`;
  }

  /** Say in how many cells of the first token the chosen fault changes the answer for any token. */
  #damage() {
    const { fault, cells } = this.chosen;
    if (!fault || this.curve.right.some((outputs) => !outputs)) return "";
    const wrong = this.curve.right.filter((outputs, k) =>
      outputs.at(-1).some((value, i) => value !== this.curve.cells[k].at(-1)[i]),
    ).length;
    return ` The fault makes answers wrong in ${wrong} of these ${cells} cells${wrong ? "" : "; other tokens or functions may show it"}.`;
  }

  #drawGrowth() {
    const { loop } = this.player,
      { outputs } = this.trace,
      goals = TARGETS[this.chosen.function](this.values());
    const series = outputs[0].map((_, i) => ({
      name: `token ${i + 1}`,
      colour: TOKEN_COLOURS[i],
      values: outputs.map((row) => Math.max(-9, Math.min(9, row[i]))),
    }));
    const lines = goals.map((goal, i) => ({
      name: `f for token ${i + 1}`,
      colour: TOKEN_COLOURS[i],
      values: outputs.map(() => goal),
      dashed: true,
    }));
    this.growth.replaceChildren(
      lineChart({
        room: this.growth,
        label: "The network's output by loop",
        series: [...lines, ...series],
        first: 0,
        now: loop,
        onPick: (picked) => {
          this.player.pause();
          this.player.show(picked);
        },
      }),
      legend(series),
      el("p.soft", {}, `Dashed: the true values. Loop ${loop} of ${this.network.loops}: ${this.#phase(loop).text}.`),
    );
  }

  #drawFetch() {
    const { loop } = this.player,
      heads = this.trace.weights[loop],
      { tokens } = this.chosen,
      values = this.values();
    if (!heads?.length) {
      this.fetchRoom.replaceChildren();
      this.fetchText.textContent = "Step through the loops to see what every token fetches.";
      return;
    }
    const gap = 210,
      height = 46 * tokens + 30,
      y = (i) => 44 + 46 * i;
    const nodes = (at, side) =>
      values.map((value, i) => [
        el("circle", { cx: at, cy: y(i), r: 15, style: { stroke: TOKEN_COLOURS[i] } }),
        el("text", { x: at, y: y(i) + 4.5, "text-anchor": "middle" }, String(i + 1)),
        side ? null : el("text.small", { x: at - 24, y: y(i) + 4, "text-anchor": "end" }, value.toFixed(2)),
      ]);
    const picture = (weights, h) => [
      el("text.small", { x: 60 + h * gap, y: 16, "text-anchor": "middle" }, "fetches"),
      el("text.small", { x: 150 + h * gap, y: 16, "text-anchor": "middle" }, "from"),
      el("text.small", { x: 105 + h * gap, y: 30, "text-anchor": "middle" }, `head ${h + 1}`),
      weights.flatMap((row, i) =>
        row.map((weight, j) =>
          weight
            ? el("line", {
                x1: 77 + h * gap,
                x2: 133 + h * gap,
                y1: y(i),
                y2: y(j),
                "stroke-width": 1 + 2 * weight,
                opacity: 0.35 + 0.65 * weight,
              })
            : null,
        ),
      ),
      nodes(60 + h * gap, false),
      nodes(150 + h * gap, true),
    ];
    this.fetchRoom.replaceChildren(
      el(
        "svg.plot.fetch",
        {
          viewBox: `0 0 ${Math.max(420, 190 + gap * (heads.length - 1))} ${height}`,
          role: "img",
          "aria-label": `What each token fetches in loop ${loop}`,
        },
        heads.map(picture),
      ),
    );
    const { step, text } = this.#phase(loop);
    const from = heads[0].map((row) => row.flatMap((weight, j) => (weight ? [j + 1] : [])));
    const same = from.every((list) => list.join() === from[0].join());
    this.fetchText.textContent =
      step === 2 && same
        ? `Loop ${loop}, step 2: every token fetches token ${from[0].join(" and ")}, which has the largest key. That token's key then falls, so that the next one is fetched.`
        : `Loop ${loop}: ${text}. ${step === 2 ? "" : "What the heads fetch now is not used."}`;
  }

  async #drawRows() {
    const mine = ++this.rowTicket,
      { loop } = this.player;
    const { rows, outputs } = await this.thread.call("proofRows", { loop });
    if (mine !== this.rowTicket) return;
    const names = Object.keys(this.network.encode);
    const line = (name, cells) =>
      el(
        "tr",
        {},
        el("th", { scope: "row" }, name),
        cells.map((text) => el("td", { title: text.length > LONG && text.length < 400 ? text : null }, brief(text))),
      );
    const table = el(
      "table",
      { "aria-label": `Rows of the state after loop ${loop}` },
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          el("th", { scope: "col" }, "row"),
          rows.map((_, i) => el("th", { scope: "col" }, `token ${i + 1}`)),
        ),
      ),
      el(
        "tbody",
        {},
        line(
          "output",
          outputs.map(([text]) => text),
        ),
        names.map((name, i) =>
          line(
            name,
            rows.map((token) => token[i]),
          ),
        ),
      ),
    );
    const { scrollTop } = this.rows;
    this.rows.replaceChildren(table);
    this.rows.scrollTop = scrollTop;
  }

  key(event) {
    return this.player.key(event);
  }

  hide() {
    this.player.pause();
  }
}
