// Words: edit distance and longest common subsequence, the true table, and what the models answer after every loop.

import { rgb } from "./charts.mjs";
import { missing, modelsOf, mostLoops, registry, Trajectory } from "./client.mjs";
import { ModelHeader } from "./header.mjs";
import { announce, calm, el, help, menu, onNextFrame, percent, Player, randomBy, spoken, wholeNumber } from "./ui.mjs";
import {
  checkWords,
  drawPair,
  encodeWords,
  fillUp,
  longestSecond,
  shortestTrained,
  solveWords,
  unlikeTraining,
} from "./words_rules.mjs";

const TASKS_OF_WORDS = { "edit-distance": "Edit distance", lcs: "Longest common subsequence" };
const REAL_WORDS = ["kitten", "sitting"];
const SHORT = 16; // letters: the table of such words fits beside a card

/** Set a canvas up for its size on the page and the screen's pixels; return its context. */
function sharp(canvas, width, height) {
  const scale = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  return context;
}

const css = ([red, green, blue], alpha = 1) => `rgb(${red} ${green} ${blue} / ${alpha})`;

/** The models' answers, loop after loop: how likely each answer is, and where the true one lies. */
class Beam {
  constructor() {
    this.canvas = el("canvas.beam", { role: "img" });
    this.element = el("div.beam-room", {}, this.canvas);
  }

  draw(frames, place, loops, loop, truth, colour) {
    const width = Math.max(this.element.clientWidth, 200),
      height = 190,
      left = 34,
      bottom = 22;
    const context = sharp(this.canvas, width, height);
    const outputs = frames[1]?.outputs ?? 1,
      likely = (frame, k) => frame.probabilities[place * outputs + k];
    let low = truth - 6,
      high = truth + 6;
    for (const frame of frames.slice(1)) {
      const best = frame.classes[place];
      if (frame.confidence[place] > 0.05) [low, high] = [Math.min(low, best - 2), Math.max(high, best + 2)];
    }
    low = Math.max(0, low);
    high = Math.min(Math.max(outputs - 1, truth), high);
    const x = (t) => left + ((width - left - 4) * (t - 1)) / loops,
      step = (width - left - 4) / loops;
    const rows = high - low + 1,
      tall = (height - bottom - 6) / rows,
      y = (k) => 6 + (high - k) * tall;
    const ink = rgb(colour),
      soft = css(rgb("--soft")),
      line = css(rgb("--line"));
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = soft;
    context.textAlign = "right";
    for (const k of new Set([low, truth, high])) context.fillText(String(k), left - 6, y(k) + tall / 2 + 4);
    context.textAlign = "center";
    for (const t of [1, Math.round(loops / 2), loops]) context.fillText(String(t), x(t) + step / 2, height - 5);
    frames.slice(1).forEach((frame, i) => {
      for (let k = low; k <= high; k++) {
        const share = likely(frame, k);
        if (share < 0.004) continue;
        context.fillStyle = css(ink, Math.min(1, 0.06 + share));
        context.fillRect(x(i + 1), y(k), Math.max(step - 0.6, 0.8), Math.max(tall - 0.6, 0.8));
      }
    });
    context.strokeStyle = css(rgb("--good"));
    context.lineWidth = 1.5;
    context.setLineDash([2, 4]);
    context.beginPath();
    context.moveTo(left, y(truth) + tall / 2);
    context.lineTo(width - 4, y(truth) + tall / 2);
    context.stroke();
    context.setLineDash([]);
    context.strokeStyle = line;
    context.strokeRect(left, 6, width - left - 4, height - bottom - 6);
    if (loop >= 1) {
      context.strokeStyle = css(rgb("--ink"), 0.8);
      context.strokeRect(x(loop) - 0.5, 6, step, height - bottom - 6);
    }
    this.canvas.setAttribute("aria-label", `Likely answers by loop; the true answer is ${truth}`);
  }
}

class WordsCard {
  constructor(tab, entry) {
    Object.assign(this, { tab, entry });
    this.answer = el("span.answer");
    this.verdict = el("p.status");
    this.beam = new Beam();
    this.header = new ModelHeader(entry, (name) => tab.setModel(this, name));
    this.element = el(
      "article.card",
      { style: { "--own": `var(--${entry.block})` } },
      this.header.element,
      el("div.answer-line", {}, this.answer, this.verdict),
      this.beam.element,
    );
  }

  start(tokens) {
    this.trajectory?.close();
    this.place = tokens.length - 1;
    this.rightSince = null;
    this.trajectory = new Trajectory(this.entry, tokens, {
      onFrame: (frame) => {
        const right = frame.classes[this.place] === this.tab.truth;
        if (!right) this.rightSince = null;
        else this.rightSince ??= frame.loop;
        this.tab.arrived();
      },
      onError: (error) => this.tab.say(error.message),
    });
    this.trajectory.extend(this.tab.player.max);
  }

  get prefixes() {
    return this.entry.config.task.answers === "prefixes";
  }

  draw(loop) {
    const frames = this.trajectory?.frames ?? [null],
      shown = Math.min(loop, frames.length - 1),
      frame = frames[shown];
    const { truth } = this.tab;
    this.answer.textContent = frame ? String(frame.classes[this.place]) : "·";
    if (frame) {
      const right = frame.classes[this.place] === truth;
      this.answer.style.opacity = 0.3 + 0.7 * frame.confidence[this.place];
      this.verdict.replaceChildren(
        right
          ? el(
              "b.good",
              {},
              this.rightSince && this.rightSince <= frame.loop ? `✓ right since loop ${this.rightSince}` : "✓ right",
            )
          : el("b.bad", {}, `the true answer is ${truth}`),
        el("span.soft", {}, `${percent(frame.confidence[this.place])} sure`),
      );
    } else this.verdict.replaceChildren(el("span.soft", {}, "Before the first loop."));
    if (this.tab.truth !== null)
      this.beam.draw(frames, this.place, this.tab.player.max, loop, truth, `--${this.entry.block}`);
  }

  describe() {
    return `${this.entry.block} answers ${this.answer.textContent}: ${spoken(this.verdict)}.`;
  }

  close() {
    this.trajectory?.close();
  }
}

const isAlike = (a, b) => a.loops === b.loops && a.config.task.length === b.config.task.length;
/** Return the best of the models that read the shortest words: people type such words first. */
function modelForShortWords(models) {
  const least = Math.min(...models.map(({ config }) => shortestTrained(config.task)));
  return models.find(({ config }) => shortestTrained(config.task) === least);
}

/** Return two models of different blocks for the same words and loops: this model and its partner if it has one. */
function twoAlike(models, entry) {
  for (const each of [entry, ...models]) {
    const partner = models.find((other) => other.block !== each.block && isAlike(other, each));
    if (partner) return [each, partner];
  }
  return [entry];
}

export class WordsTab {
  task = "edit-distance";
  cards = [];
  truth = null;

  constructor(root) {
    this.player = new Player({
      trained: 10,
      onChange: (loop) => this.draw(loop),
      onMore: (loops) => this.cards.forEach((card) => card.trajectory?.extend(loops)),
      describe: () => this.cards.map((card) => card.describe()).join(" "),
    });
    this.redraw = onNextFrame(() => this.draw(this.player.loop));
    const field = (label) =>
      el("input.word", {
        type: "text",
        spellcheck: "false",
        autocapitalize: "none",
        autocomplete: "off",
        "aria-label": label,
        oninput: () => this.typed(),
      });
    this.first = field("First word");
    this.second = field("Second word");
    this.note = el("p.note", { role: "status" });
    this.fill = el("button", { type: "button", onclick: () => this.fillUp() }, "Fill up");
    this.switch = menu("Task", Object.entries(TASKS_OF_WORDS), this.task, (task) => this.setTask(task));
    this.compare = el("input", { type: "checkbox", id: "compare-words", onchange: () => this.setCompared() });
    this.root = root;
    this.room = el("div.cards");
    this.table = el("canvas.table", { role: "img" });
    this.alignment = el("div.alignment", { tabindex: 0, role: "img" });
    this.explain = el("p.soft");
    this.below = el("p.soft.source");
    root.append(
      el(
        "div.toolbar",
        {},
        this.switch,
        el("button", { type: "button", onclick: () => this.drawNew() }, "New pair"),
        this.fill,
        el("label.switch", { for: "compare-words" }, this.compare, " Two models"),
      ),
      el("div.words", {}, this.first, this.second),
      this.note,
      el(
        "div.bench",
        {},
        this.room,
        el(
          "article.card.wide",
          {},
          el("header", {}, el("h2.plain", {}, "The truth")),
          this.explain,
          this.alignment,
          el("div.scroll", { tabindex: 0, role: "group", "aria-label": "Table" }, this.table),
          this.below,
        ),
      ),
      this.player.element,
      help(
        "The model reads both words at once and answers with one number. The picture in its card shows, loop after loop, how likely it finds each answer; the dotted line is the true one.",
        "The table is the textbook's dynamic programme: each cell holds the answer for a pair of prefixes, and the line through it is a best path. A model that was trained with an answer for every prefix of the second word gets a row of its own under the table.",
      ),
    );
  }

  open(state) {
    this.setTask(
      Object.hasOwn(TASKS_OF_WORDS, state.t) ? state.t : this.task,
      [state.m, state.vs],
      state.a ? [state.a, state.b ?? ""] : null,
    );
    this.say([missing([this.task], state.m, state.vs), this.note.textContent].filter(Boolean).join(" "));
    const loop = wholeNumber(state.loop, 0, Infinity);
    if (loop) this.player.goTo(loop);
  }

  state() {
    return {
      t: this.task,
      a: this.first.value,
      b: this.second.value,
      m: this.cards[0].entry.name,
      vs: this.cards[1]?.entry.name,
      loop: this.player.loop || null,
    };
  }

  setTask(task, names = [], words = null) {
    this.task = task;
    this.switch.value = task;
    const known = names.filter((name) => registry.get(name)?.task === task);
    this.#build(known.length ? known : [modelForShortWords(modelsOf(task)).name]);
    this.#begin(words);
  }

  /** Show the words of a link, the words that everybody knows if the model reads such short ones, or a new pair. */
  #begin(words = null) {
    if (words) {
      [this.first.value, this.second.value] = words;
      this.run(true);
    } else if (shortestTrained(this.config) <= 6) {
      [this.first.value, this.second.value] = REAL_WORDS;
      this.run(!calm());
    } else this.drawNew(!calm());
  }

  /** Add a model of the other block, or take it away. A model without a counterpart gives way to two that are alike. */
  setCompared() {
    const { entry } = this.cards[0];
    if (!this.compare.checked) this.#build([entry.name]);
    else this.#build(twoAlike(modelsOf(this.task), entry).map(({ name }) => name));
    if (this.compare.checked && this.cards[0].entry !== entry) this.#begin();
    else this.run(false);
  }

  #build(names) {
    this.cards.forEach((card) => card.close());
    this.cards = names.map((name) => new WordsCard(this, registry.get(name)));
    this.room.replaceChildren(...this.cards.map((card) => card.element));
    this.room.classList.toggle("two", this.cards.length === 2);
    this.compare.checked = this.cards.length === 2;
    this.player.setTrained(
      Math.max(...this.cards.map(({ entry }) => entry.loops)),
      Math.max(...this.cards.map(({ entry }) => mostLoops(entry))),
    );
  }

  setModel(card, name) {
    this.#build(this.cards.map((each) => (each === card ? name : each.entry.name)));
    this.run(false);
  }

  /** The first model's task: what words are drawn for and held against. */
  get config() {
    return this.cards[0].entry.config.task;
  }

  drawNew(play = true) {
    [this.first.value, this.second.value] = drawPair(this.config, randomBy(Math.random() * 2 ** 32));
    this.run(play);
  }

  fillUp() {
    [this.first.value, this.second.value] = fillUp(
      this.config,
      this.first.value.trim().toLowerCase(),
      this.second.value.trim().toLowerCase(),
      Math.random,
    );
    this.run(true);
  }

  typed() {
    clearTimeout(this.waiting);
    this.player.pause();
    this.waiting = setTimeout(() => this.run(true), 300);
  }

  say(text) {
    this.note.textContent = text;
  }

  run(play) {
    this.cards.forEach((card) => {
      card.close();
      card.trajectory = null;
    });
    this.player.pause();
    this.player.setTrained(this.player.trained);
    this.player.reach(0);
    try {
      const pairs = this.cards.map(({ entry }) => checkWords(entry.config.task, this.first.value, this.second.value));
      [this.a, this.b] = pairs[0];
    } catch (error) {
      this.truth = null;
      this.root.classList.add("blank");
      this.say(error.message);
      this.player.show(0);
      return;
    }
    this.root.classList.remove("blank");
    this.root.classList.toggle("short", this.b.length <= SHORT && this.a.length <= SHORT);
    this.say(unlikeTraining(this.config, this.a, this.b));
    this.fill.hidden = Math.min(this.a.length, this.b.length) >= shortestTrained(this.config) - 3;
    this.solved = solveWords(this.config, this.a, this.b);
    this.truth = this.solved.table[this.a.length][this.b.length];
    this.#explain();
    this.player.show(0);
    this.cards.forEach((card) => card.start(encodeWords(card.entry.config.task, this.a, this.b)));
    if (play) this.player.play();
  }

  #explain() {
    const { path } = this.solved,
      lcs = this.task === "lcs",
      costs = this.config;
    this.explain.textContent = lcs
      ? `The longest common subsequence has ${this.truth} letters.`
      : `The least cost is ${this.truth}: ${costs.insert_cost} for inserting a letter, ${costs.delete_cost} for deleting one, ${costs.replace_cost} for replacing one.`;
    let i = 0,
      j = 0;
    const columns = path.slice(1).map(([, , step]) => {
      const above = step === "insert" ? "–" : this.a[i++],
        below = step === "remove" ? "–" : this.b[j++];
      return el(`span.${step}`, {}, el("i", {}, above), el("i", {}, below));
    });
    this.alignment.replaceChildren(...columns);
    this.alignment.setAttribute(
      "aria-label",
      `A best alignment: ${path
        .slice(1)
        .map(([, , step]) => step)
        .join(", ")}`,
    );
  }

  show() {
    this.cards.forEach(({ header }) => header.refresh());
    this.draw(this.player.loop);
  }

  arrived() {
    const done = Math.min(this.player.max, ...this.cards.map(({ trajectory }) => trajectory?.reach ?? 0)),
      before = this.player.available;
    this.player.reach(done);
    this.redraw();
    if (done === this.player.max && before < done) {
      announce(
        this.cards
          .map((card) => `${card.entry.block} answers ${card.trajectory.frames.at(-1).classes[card.place]}`)
          .join(", ") + `; the truth is ${this.truth}.`,
      );
    }
  }

  draw(loop) {
    this.cards.forEach((card) => card.draw(loop));
    if (this.truth !== null) this.#drawTable(loop);
  }

  /** Draw the table with its path, and a row of answers for each model that was trained to give them. */
  #drawTable(loop) {
    const { table, path } = this.solved,
      rows = table.length,
      columns = table[0].length;
    const dense = this.cards.filter(
      (card) => card.prefixes && card.trajectory?.frames[Math.min(loop, card.trajectory.done)],
    );
    const room = this.table.parentElement.clientWidth,
      cell = Math.max(11, Math.min(30, Math.floor((room - 26) / columns), Math.floor(600 / rows)));
    const left = 24,
      top = 20,
      height = top + rows * cell + dense.length * (cell + 6) + 4,
      width = left + columns * cell + 2;
    const context = sharp(this.table, width, height),
      largest = Math.max(1, ...table.flat());
    const ink = rgb("--looped"),
      soft = css(rgb("--soft"));
    context.textAlign = "center";
    context.textBaseline = "middle";
    const small = Math.min(cell * 0.62, 13);
    context.font = `${small}px ui-monospace, monospace`;
    table.forEach((row, i) =>
      row.forEach((value, j) => {
        context.fillStyle = css(ink, 0.03 + (0.5 * value) / largest);
        context.fillRect(left + j * cell, top + i * cell, cell - 0.7, cell - 0.7);
      }),
    );
    context.strokeStyle = css(rgb("--modulated"), cell >= 18 ? 0.45 : 1);
    context.lineWidth = cell >= 18 ? cell / 3 : 1.8;
    context.lineCap = "round";
    context.lineJoin = "round";
    context.beginPath();
    path.forEach(([i, j], n) => context[n ? "lineTo" : "moveTo"](left + (j + 0.5) * cell, top + (i + 0.5) * cell));
    context.stroke();
    if (cell >= 18) {
      context.fillStyle = css(rgb("--ink"), 0.85);
      table.forEach((row, i) =>
        row.forEach((value, j) => context.fillText(String(value), left + (j + 0.5) * cell, top + (i + 0.5) * cell)),
      );
    }
    context.fillStyle = soft;
    [...this.b].forEach((letter, j) => context.fillText(letter, left + (j + 1.5) * cell, top - 9));
    [...this.a].forEach((letter, i) => context.fillText(letter, left - 11, top + (i + 1.5) * cell));
    dense.forEach((card, n) => {
      const frame = card.trajectory.frames[Math.min(loop, card.trajectory.done)],
        y = top + rows * cell + 6 + n * (cell + 6);
      for (let j = 0; j < columns; j++) {
        const place = this.a.length + j,
          right = frame.classes[place] === table[rows - 1][j];
        context.fillStyle = css(rgb(right ? "--good" : "--bad"), 0.15 + 0.55 * frame.confidence[place]);
        context.fillRect(left + j * cell, y, cell - 0.7, cell - 0.7);
        if (cell >= 18) {
          context.fillStyle = css(rgb("--ink"));
          context.fillText(String(frame.classes[place]), left + (j + 0.5) * cell, y + cell / 2);
        }
      }
      context.fillStyle = css(rgb(`--${card.entry.block}`));
      context.fillText(card.entry.block[0].toUpperCase(), left - 11, y + cell / 2);
    });
    const answered = dense.map(({ entry, trajectory: { frames, done } }) => {
      const answers = frames[Math.min(loop, done)].classes.slice(this.a.length, this.a.length + columns);
      return ` The ${entry.block} model answers ${answers.join(", ")} for the prefixes of the second word.`;
    });
    this.table.setAttribute(
      "aria-label",
      `Table of ${rows} by ${columns} answers for prefixes with a best path. Its last row is ${table.at(-1).join(", ")}.${answered.join("")}`,
    );
    const marks = dense.map(({ entry: { block } }) => `${block[0].toUpperCase()}: ${block}`).join(", ");
    this.below.textContent = dense.length
      ? `Below the table: the answers for every prefix of the second word after this loop (${marks}). Green is right, red is wrong.`
      : "";
  }

  key(event) {
    return this.player.key(event);
  }
}
