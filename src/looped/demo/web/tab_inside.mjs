// Inside: what a model's state does from loop to loop, what its modulation sets, and what its heads look at.

import { heatMap, legend, lineChart } from "./charts.mjs";
import { missing, mostLoops, openModel, registry, Trajectory } from "./client.mjs";
import { encodeNumbers } from "./countdown_rules.mjs";
import { el, help, menu, onNextFrame, percent, Player, short, wholeNumber } from "./ui.mjs";
import { checkWords, encodeWords, LETTERS } from "./words_rules.mjs";

const TASK_NAMES = {
  sudoku: "Sudoku",
  "edit-distance": "Edit distance",
  lcs: "Longest common subsequence",
  countdown: "Countdown",
  "decision-tree": "Decision trees",
};
const PART_NAMES = {
  alpha1: "α₁, gain before attention",
  alpha2: "α₂, gain before feed-forward",
  gamma1: "γ₁, gate of attention",
  gamma2: "γ₂, gate of feed-forward",
  shift1: "shift before attention",
  shift2: "shift before feed-forward",
};
const PART_COLOURS = {
  alpha1: "var(--looped)",
  alpha2: "var(--good)",
  gamma1: "var(--modulated)",
  gamma2: "var(--bad)",
  shift1: "var(--standard)",
  shift2: "var(--soft)",
};

const mean = (values) => values.reduce((a, b) => a + b, 0) / Math.max(values.length, 1);

export class InsideTab {
  head = 0;
  layer = 0;
  query = null;
  part = null;

  constructor(root, data, { tabs }) {
    this.tabs = tabs;
    this.player = new Player({
      trained: 32,
      onChange: () => this.draw(),
      onMore: (loops) => this.#more(loops),
      describe: () => [this.changeRoom, this.answerRoom].map((room) => room.lastChild?.textContent ?? "").join(" "),
    });
    this.redraw = onNextFrame(() => this.draw());
    this.note = el("p.note", { role: "status" });
    this.pickRoom = el("span");
    this.exampleText = el("p.soft.source");
    this.changeRoom = el("div");
    this.answerRoom = el("div");
    this.answerTitle = el("h2.plain");
    this.curvesRoom = el("div");
    this.heat = el("canvas.heat", { role: "img", onpointerdown: (event) => this.#pickLoop(event) });
    this.heatTools = el("span.tools");
    this.heatAxis = el("p.soft");
    this.matrix = el("canvas.heat", { role: "img", onpointerdown: (event) => this.#pickQuery(event) });
    this.attentionTools = el("span.tools");
    this.looks = el("div", { onkeydown: (event) => this.#moveQuery(event) });
    this.attentionText = el("p.soft");
    const tile = (title, tools, ...content) =>
      el(
        "article.card",
        {},
        el("header", {}, typeof title === "string" ? el("h2.plain", {}, title) : title, tools),
        ...content,
      );
    this.attentionCard = tile(
      "Attention",
      this.attentionTools,
      this.attentionText,
      el("div.attention", {}, this.looks, this.matrix),
    );
    this.attentionCard.classList.add("full");
    root.append(
      el("div.toolbar", {}, this.pickRoom),
      this.exampleText,
      this.note,
      el(
        "div.tiles",
        {},
        tile("The state, from loop to loop", null, this.changeRoom),
        tile(this.answerTitle, null, this.answerRoom),
        tile("Modulation by loop", null, this.curvesRoom),
        tile("Every channel", this.heatTools, el("div.heat-room", {}, this.heat, this.heatAxis)),
        this.attentionCard,
      ),
      this.player.element,
      help(
        "Change is the distance between successive states, divided by the size of the state: where it falls towards zero, the loop has settled. Entropy says how unsure the answers are, in bits. A modulated model scales its block by α(t) before, and γ(t) after, each sublayer; the curves show their size, the picture beside them every channel. Click a chart to go to that loop, and a cell or token to see what it attends to.",
      ),
    );
  }

  async open(state) {
    const modulated = [...registry.values()].find((entry) => entry.block === "modulated");
    const name = registry.has(state.m) ? state.m : (this.entry ?? modulated ?? [...registry.values()][0]).name;
    await this.setModel(name, state);
  }

  state() {
    return {
      m: this.entry.name,
      loop: this.player.loop || null,
      head: this.head || null,
      layer: this.layer || null,
      q: this.query,
    };
  }

  show() {
    if (!this.remote) return;
    if (this.#inputs().inputs.join() !== this.example.inputs.join()) this.setModel(this.entry.name, this.state());
    else this.draw();
  }

  async setModel(name, state = {}) {
    const entry = registry.get(name);
    this.trajectory?.close();
    this.trajectory = null;
    this.entry = entry;
    const groups = Object.entries(TASK_NAMES).map(([task, title]) => [
      title,
      [...registry.values()].filter((each) => each.task === task).map((each) => [each.name, each.name]),
    ]);
    this.pickRoom.replaceChildren(
      menu(
        "Model",
        groups.filter(([, models]) => models.length),
        name,
        (other) => this.setModel(other),
      ),
    );
    this.head = wholeNumber(state.head, 0, entry.heads - 1) ?? 0;
    this.layer = wholeNumber(state.layer, 0, entry.layers - 1) ?? 0;
    this.query = wholeNumber(state.q, 0, Infinity);
    this.note.textContent = "Loading the model…";
    try {
      this.remote = await openModel(name);
    } catch (error) {
      this.note.textContent = error.message;
      return;
    }
    if (this.entry !== entry) return;
    this.note.textContent = missing(Object.keys(TASK_NAMES), state.m);
    this.example = this.#inputs();
    this.exampleText.textContent = this.example.text;
    this.player.setTrained(entry.loops, mostLoops(entry));
    this.player.reach(0);
    await this.#loadModulation(entry.loops);
    this.#tools();
    this.trajectory = new Trajectory(entry, this.example.inputs, {
      attention: true,
      onFrame: () => {
        this.player.reach(this.trajectory.reach);
        this.redraw();
      },
      onError: (error) => {
        this.note.textContent = error.message;
      },
    });
    this.trajectory.extend(this.player.max);
    this.player.goTo(wholeNumber(state.loop, 0, Infinity) || entry.loops);
  }

  async #loadModulation(loops) {
    const { tables, parts } = await this.remote.modulation(loops, this.layer);
    this.tables = tables;
    this.modulated = parts.length > 0;
    if (!(this.part in tables))
      this.part = Object.keys(tables).find((name) => name.startsWith("gamma")) ?? Object.keys(tables)[0];
  }

  async #more(loops) {
    this.trajectory?.extend(loops);
    await this.#loadModulation(loops);
    this.draw();
  }

  /** Return the example to look at: what the model's own tab shows, or the test example that came with its file. */
  #inputs() {
    const { task, config } = this.entry,
      tab = this.tabs.get({ "edit-distance": "words", lcs: "words" }[task] ?? task);
    const stored = this.remote?.about.example;
    if (task === "sudoku" && tab?.clues.some(Boolean) && tab.clues.length === (config.task.side ?? 9) ** 2) {
      return { inputs: tab.clues, text: "The example is the puzzle of the Sudoku tab." };
    }
    if ((task === "edit-distance" || task === "lcs") && tab?.task === task && tab.truth !== null) {
      try {
        const words = checkWords(config.task, tab.a, tab.b);
        return { inputs: encodeWords(config.task, ...words), text: "The example is the pair of the Words tab." };
      } catch {
        // this model cannot read them: it is shown with its own example
      }
    }
    if (task === "countdown" && tab?.trajectory) {
      const { numbers, target } = tab.checked;
      return { inputs: encodeNumbers(numbers, target), text: "The example is that of the Countdown tab." };
    }
    if (!stored) return { inputs: [], text: "" };
    return {
      inputs: stored.inputs[0].flat(),
      targets: stored.targets[0].flat(),
      text: "The example is the first one of the test set, which came with the model.",
    };
  }

  #tools() {
    const { heads, layers } = this.entry,
      numbers = (count, word) => Array.from({ length: count }, (_, i) => [String(i), `${word} ${i + 1}`]);
    const pickHead = menu("Head", numbers(heads, "head"), String(this.head), (value) => {
      this.head = Number(value);
      this.draw();
    });
    const pickLayer = menu("Layer", numbers(layers, "layer"), String(this.layer), async (value) => {
      this.layer = Number(value);
      await this.#loadModulation(this.player.max);
      this.draw();
    });
    this.attentionTools.replaceChildren(...(layers > 1 ? [pickLayer] : []), pickHead);
    this.heatTools.replaceChildren(
      menu(
        "Part",
        Object.keys(this.tables).map((name) => [name, PART_NAMES[name]]),
        this.part,
        (name) => {
          this.part = name;
          this.draw();
        },
      ),
    );
  }

  draw() {
    if (!this.trajectory) return;
    const { loop } = this.player,
      frames = this.trajectory.frames.slice(1),
      onPick = (picked) => {
        this.player.pause();
        this.player.show(picked);
      };
    const common = { now: loop || null, marks: [this.entry.loops], onPick };
    const colour = `var(--${this.entry.block})`;
    const moves = [
      { name: "change in a loop, relative to the state", colour, values: frames.map(({ change }) => change) },
      { name: "size of the state", colour: "var(--soft)", values: frames.map(({ size }) => size), dashed: true },
    ];
    const now = frames[loop - 1];
    this.changeRoom.replaceChildren(
      lineChart({
        room: this.changeRoom,
        label: "Change of the state and its size by loop",
        series: moves,
        log: true,
        ...common,
      }),
      legend(moves),
      el(
        "p.soft",
        {},
        now ? `Loop ${loop} moves the state by ${percent(now.change, now.change < 0.01 ? 2 : 0)} of its size.` : " ",
      ),
    );
    this.#drawAnswers(frames, common, colour);
    this.#drawModulation(common);
    this.#drawAttention(now);
  }

  #counted(frame) {
    const { task } = this.entry,
      { inputs } = this.example,
      all = [...frame.classes.keys()];
    if (task === "sudoku") return all.filter((place) => !inputs[place]);
    if (task === "countdown") return all.filter((place) => inputs[place] === 0);
    return [all.length - 1];
  }

  #drawAnswers(frames, common, colour) {
    if (!frames.length) return;
    if (frames[0].values) {
      this.answerTitle.textContent = "Predictions";
      const { loop } = this.player,
        shown = frames[Math.max(Math.min(loop, frames.length), 1) - 1];
      const every = (values) => [...values].filter((_, i) => i % 2 === 0);
      const truth = every(this.example.targets),
        guess = every(shown.values);
      const series = [
        { name: "true value", colour: "var(--soft)", values: truth },
        { name: "prediction", colour, values: guess },
      ];
      const late = guess.map((value, i) => (value - truth[i]) ** 2).slice(-20);
      this.answerRoom.replaceChildren(
        lineChart({
          room: this.answerRoom,
          label: "True values and predictions by point",
          series,
          xLabel: "point of the prompt",
        }),
        legend(series),
        el(
          "p.soft",
          {},
          `Mean squared error of the last 20 points after loop ${shown.loop}: ${short(mean(late))}. The model sees only the points before.`,
        ),
      );
      return;
    }
    this.answerTitle.textContent = "How unsure the answers are";
    const places = this.#counted(frames[0]);
    const series = [
      {
        name: "mean entropy in bits",
        colour,
        values: frames.map((frame) => mean(places.map((place) => frame.entropy[place]))),
      },
    ];
    const now = frames[this.player.loop - 1];
    this.answerRoom.replaceChildren(
      lineChart({
        room: this.answerRoom,
        label: "Entropy of the answers by loop",
        series,
        ...common,
        range: [0, Math.max(...series[0].values, 0.01)],
      }),
      legend(series),
      el(
        "p.soft",
        {},
        now
          ? `After loop ${now.loop}: ${percent(mean(places.map((place) => now.confidence[place])))} sure on average.`
          : " ",
      ),
    );
  }

  #drawModulation(common) {
    const names = Object.keys(this.tables);
    const series = names.map((name) => ({
      name: PART_NAMES[name],
      colour: PART_COLOURS[name],
      values: this.tables[name].map((row) => Math.sqrt(mean([...row].map((value) => value ** 2)))),
    }));
    const top = Math.max(...series.flatMap(({ values }) => values));
    this.curvesRoom.replaceChildren(
      lineChart({
        room: this.curvesRoom,
        label: "Size of the modulation by loop",
        series,
        ...common,
        range: [0, top],
      }),
      legend(series),
      el(
        "p.soft",
        {},
        this.modulated
          ? "Root mean square over the channels. A function of the loop index sets all of them in every loop."
          : "Root mean square over the channels. The same in every loop: this model has fixed gains and no gates.",
      ),
    );
    const rows = this.tables[this.part],
      zero = this.part.startsWith("alpha") ? 1 : 0;
    const largest = Math.max(1e-9, ...rows.map((row) => Math.max(...row.map((value) => Math.abs(value - zero)))));
    const order = [...rows[0].keys()].sort((a, b) => rows[0][a] - rows[0][b]);
    heatMap(
      this.heat,
      rows.map((row) => order.map((channel) => (row[channel] - zero) / largest)),
    );
    this.heat.setAttribute(
      "aria-label",
      `${PART_NAMES[this.part]} of ${order.length} channels in ${rows.length} loops`,
    );
    this.heatAxis.textContent = `Down: loops 1 to ${rows.length}. Across: ${order.length} channels, sorted by their value in loop 1. Blank is ${zero}; blue is above and orange below, by up to ${short(largest)}.`;
  }

  #pickLoop(event) {
    const box = this.heat.getBoundingClientRect();
    this.player.pause();
    this.player.show(1 + Math.floor(((event.clientY - box.top) / box.height) * this.player.max));
  }

  #pickQuery(event) {
    const box = this.matrix.getBoundingClientRect(),
      seq = this.matrix.height;
    this.query = Math.max(0, Math.min(seq - 1, Math.floor(((event.clientY - box.top) / box.height) * seq)));
    this.draw();
  }

  /** Move from one cell or token to its neighbour by the arrow keys. */
  #moveQuery(event) {
    const { length } = this.example.inputs,
      side = this.entry.task === "sudoku" ? Math.sqrt(length) : 1;
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -side, ArrowDown: side }[event.key];
    if (!step) return;
    this.query = Math.max(0, Math.min(length - 1, this.query + step));
    this.draw();
    event.preventDefault();
  }

  #drawAttention(frame) {
    const weights = frame?.attention?.[this.layer];
    if (!weights) {
      this.attentionText.textContent = "Go to a loop to see what the heads attend to.";
      return;
    }
    const seq = Math.round(Math.sqrt(weights.length / this.entry.heads)),
      rows = [];
    for (let t = 0; t < seq; t++)
      rows.push(weights.subarray((this.head * seq + t) * seq, (this.head * seq + t + 1) * seq));
    this.query = Math.min(this.query ?? (this.entry.task === "sudoku" ? Math.floor(seq / 2) : seq - 1), seq - 1);
    // The square root brings out small weights.
    heatMap(
      this.matrix,
      rows.map((row) => Array.from(row, Math.sqrt)),
      `--${this.entry.block}`,
    );
    this.matrix.setAttribute(
      "aria-label",
      `Attention of head ${this.head + 1} in loop ${frame.loop}: ${seq} by ${seq} weights`,
    );
    const row = rows[this.query],
      best = [...row.keys()].sort((a, b) => row[b] - row[a]).slice(0, 3);
    this.attentionText.textContent = `Loop ${frame.loop}, head ${this.head + 1}: ${this.#place(this.query)} looks mostly at ${best.map((place) => `${this.#place(place)} (${percent(row[place])})`).join(", ")}.`;
    this.#drawLooks(row, Math.max(...row));
  }

  #place(place) {
    if (this.entry.task !== "sudoku") return `“${this.#token(place)}” at ${place + 1}`;
    const side = this.entry.config.task.side ?? 9;
    return `row ${Math.floor(place / side) + 1}, column ${(place % side) + 1}`;
  }

  #token(place) {
    const { task, config } = this.entry,
      token = this.example.inputs[place];
    if (task === "decision-tree") return place % 2 ? "y" : "x";
    if (task === "countdown") return token >= 6 ? String(token - 6) : "_";
    return ["·", ...LETTERS.slice(0, config.task.alphabet), "|", "="][token];
  }

  #drawLooks(row, largest) {
    const focused = this.looks.contains(document.activeElement),
      own = { style: { "--own": `var(--${this.entry.block})` } },
      share = (weight) => (0.75 * Math.sqrt(weight / largest)).toFixed(3);
    const pick = (place) => () => {
      this.query = place;
      this.draw();
    };
    if (this.entry.task === "sudoku") {
      const side = this.entry.config.task.side ?? 9,
        frame = this.trajectory.frames[Math.min(this.player.loop, this.trajectory.done)];
      const cells = Array.from(row, (weight, place) => {
        const clue = this.example.inputs[place],
          digit = clue || frame?.classes[place];
        return el(
          `button.cell${clue ? ".given" : ""}${place === this.query ? ".selected" : ""}`,
          {
            type: "button",
            tabindex: place === this.query ? 0 : -1,
            "aria-label": `${this.#place(place)}: ${digit || "open"}, weight ${percent(weight)}`,
            style: { "--weight": share(weight) },
            onclick: pick(place),
          },
          el("span.digit", { style: { opacity: clue ? 1 : 0.6 } }, String(digit || "")),
        );
      });
      const lines = Array.from({ length: side }, (_, i) => el("div.row", {}, cells.slice(i * side, (i + 1) * side)));
      this.looks.replaceChildren(el("div.board-room", own, el(`div.board.side${side}`, {}, lines)));
    } else {
      this.looks.replaceChildren(
        el(
          "div.sequence",
          own,
          Array.from(row, (weight, place) =>
            el(
              `button${place === this.query ? ".selected" : ""}`,
              {
                type: "button",
                tabindex: place === this.query ? 0 : -1,
                "aria-label": `${this.#place(place)}: weight ${percent(weight)}`,
                style: { "--weight": share(weight) },
                onclick: pick(place),
              },
              this.#token(place),
            ),
          ),
        ),
      );
    }
    if (focused) this.looks.querySelector(".selected").focus({ preventScroll: true });
  }

  key(event) {
    return this.player.key(event);
  }

  hide() {
    this.player.pause();
  }
}
