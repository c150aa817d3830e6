// Countdown: numbers and a target, and the model's three steps after every loop, each of them checked.

import { Strip } from "./charts.mjs";
import { missing, modelsOf, mostLoops, registry, Trajectory } from "./client.mjs";
import { checkNumbers, drawNumbers, encodeNumbers, readSteps, searchNumbers } from "./countdown_rules.mjs";
import { ModelHeader } from "./header.mjs";
import {
  announce,
  calm,
  counted,
  el,
  help,
  onNextFrame,
  percent,
  Player,
  randomBy,
  spoken,
  wholeNumber,
} from "./ui.mjs";

export class CountdownTab {
  constructor(root) {
    this.player = new Player({
      trained: 32,
      onChange: () => this.draw(),
      onMore: (loops) => this.trajectory?.extend(loops),
      describe: () => [...this.steps.children, this.verdict].map(spoken).join(". "),
    });
    this.redraw = onNextFrame(() => this.draw());
    const field = (label) =>
      el("input.number", {
        type: "number",
        inputmode: "numeric",
        min: 1,
        max: 999,
        "aria-label": label,
        oninput: () => this.typed(),
      });
    this.field = field;
    this.numbers = [];
    this.hand = el("div.hand");
    this.target = field("Target");
    this.target.classList.add("target");
    this.note = el("p.note", { role: "status" });
    this.room = el("div.cards");
    this.truth = el("p.soft.middle");
    root.append(
      el(
        "div.numbers",
        {},
        this.hand,
        el("span.arrow", { "aria-hidden": "true" }, "→"),
        this.target,
        el("button", { type: "button", onclick: () => this.drawNew() }, "New numbers"),
      ),
      this.note,
      this.room,
      this.truth,
      this.player.element,
      help(
        "Use every number once and reach the target with +, −, × and ÷; each step's result may be used in the next. The model writes all three steps at once and rewrites them in every loop. Faint symbols are those it is unsure of. Each step is checked: it must be true, and its numbers must be at hand.",
      ),
    );
  }

  open(state) {
    const models = modelsOf("countdown");
    this.#build((models.find(({ name }) => name === state.m) ?? models[0]).name);
    const loop = wholeNumber(state.loop, 0, Infinity);
    if (state.n) {
      this.#fill(state.n.split(" "), state.g ?? "");
      this.run(!loop && !calm());
      if (loop) this.player.goTo(loop);
    } else if (this.entry.example) {
      const shown = this.entry.example.match(/\d+/g); // numbers -> target
      this.#fill(shown.slice(0, -1), shown.at(-1));
      this.run(!calm());
    } else this.drawNew(!calm());
    this.#say(missing(["countdown"], state.m), this.note.textContent);
  }

  /** Have a field for each number that the model was trained with; keep what is in those that stay. */
  #deal(count) {
    this.numbers = Array.from({ length: count }, (_, i) => this.numbers[i] ?? this.field(`Number ${i + 1}`));
    this.hand.replaceChildren(...this.numbers);
  }

  #fill(numbers, target) {
    this.numbers.forEach((input, i) => {
      input.value = numbers[i] ?? "";
    });
    this.target.value = target;
  }

  #say(...texts) {
    this.note.textContent = texts.filter(Boolean).join(" ");
  }

  state() {
    return { n: this.given().join(" "), g: this.target.value, m: this.entry.name, loop: this.player.loop || null };
  }

  #build(name) {
    this.entry = registry.get(name);
    this.#deal(this.entry.config.task.count ?? 4);
    this.steps = el("ol.steps");
    this.verdict = el("p.status");
    this.strip = new Strip("How sure the model is, by loop", `var(--${this.entry.block})`);
    this.header = new ModelHeader(this.entry, (other) => {
      this.#build(other);
      this.run(false);
    });
    this.room.replaceChildren(
      el(
        "article.card",
        { style: { "--own": `var(--${this.entry.block})` } },
        this.header.element,
        this.steps,
        this.strip.element,
        this.verdict,
      ),
    );
    this.player.setTrained(this.entry.loops, mostLoops(this.entry));
  }

  given() {
    return this.numbers
      .map((input) => input.value.trim())
      .filter(Boolean)
      .map(Number);
  }

  drawNew(play = true) {
    const { numbers, target } = drawNumbers(this.entry.config.task, randomBy(Math.random() * 2 ** 32));
    this.#fill(numbers, target);
    this.run(play);
  }

  typed() {
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => this.run(true), 350);
  }

  run(play) {
    this.trajectory?.close();
    this.trajectory = null;
    this.sure = [0];
    this.solvedAt = null;
    this.player.pause();
    this.player.setTrained(this.player.trained);
    this.player.reach(0);
    this.player.show(0);
    try {
      this.checked = checkNumbers(this.entry.config.task, this.given(), Number(this.target.value));
    } catch (error) {
      this.#say(error.message);
      this.truth.textContent = "";
      this.steps.replaceChildren();
      this.verdict.replaceChildren();
      return;
    }
    const { numbers, target } = this.checked,
      { count = 4 } = this.entry.config.task;
    const { first, count: ways } = searchNumbers(numbers, target);
    this.#say(
      !first
        ? `No way leads from these numbers to ${target}. You can still watch the model try.`
        : numbers.length < count
          ? `This model was trained with ${count} numbers, so its answer for ${numbers.length} is a guess.`
          : "",
    );
    this.truth.textContent = first
      ? `A search finds ${ways >= 200 ? "200 or more ways" : counted(ways, "way")}; the first is ${first.join(", ")}.`
      : "";
    const inputs = encodeNumbers(numbers, target);
    this.trajectory = new Trajectory(this.entry, inputs, {
      onFrame: (frame) => {
        const read = readSteps(numbers, target, frame.classes, frame.confidence);
        const sure = read.steps.flatMap((step) => step.sure);
        this.sure.push(sure.reduce((a, b) => a + b, 0) / sure.length);
        if (!read.reached) this.solvedAt = null;
        else this.solvedAt ??= frame.loop;
        this.player.reach(this.trajectory.reach);
        this.redraw();
        if (frame.loop === this.player.max)
          announce(read.reached ? `The model reaches ${target}.` : `The model does not reach ${target}.`);
      },
      onError: (error) => this.#say(error.message),
    });
    this.trajectory.extend(this.player.max);
    if (play) this.player.play();
  }

  show() {
    this.header.refresh();
    this.draw();
  }

  draw() {
    const { loop, max } = this.player,
      frame = this.trajectory?.frames[Math.min(loop, this.trajectory.done)] ?? null;
    this.strip.draw(this.sure ?? [0], max, loop);
    if (!frame) {
      const blanks = Math.max(this.given().length - 1, 1);
      this.steps.replaceChildren(
        ...Array.from({ length: blanks }, () =>
          el("li", {}, el("span.sum.soft", {}, "_ _ _ = _"), el("span.soft", {}, " ")),
        ),
      );
      this.verdict.replaceChildren(el("span.soft", {}, "Before the first loop: the answer is blank."));
      return;
    }
    const { numbers, target } = this.checked;
    const { steps, reached, ends } = readSteps(numbers, target, frame.classes, frame.confidence);
    this.steps.replaceChildren(
      ...steps.map(({ texts, sure, fault }) =>
        el(
          "li",
          {},
          el(
            "span.sum",
            {},
            texts.map((text, i) => el("span", { style: { opacity: (0.4 + 0.6 * sure[i]).toFixed(2) } }, text)),
          ),
          fault ? el("span.bad", {}, `✗ ${fault}`) : el("span.good", {}, "✓ true"),
        ),
      ),
    );
    this.verdict.replaceChildren(
      reached
        ? el(
            "b.good",
            {},
            `✓ ${target} reached${this.solvedAt && this.solvedAt <= frame.loop ? ` since loop ${this.solvedAt}` : ""}`,
          )
        : el("b", {}, ends === target ? "Ends at the target, but not by valid steps" : `Not at ${target}`),
      el("span.soft", {}, `${percent(this.sure[frame.loop])} sure on average`),
    );
  }

  key(event) {
    return this.player.key(event);
  }
}
