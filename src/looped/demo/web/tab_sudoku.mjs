// Sudoku: one puzzle, one or two models, and their boards after every loop.

import { Strip } from "./charts.mjs";
import { missing, modelsOf, mostLoops, openModel, registry, Trajectory } from "./client.mjs";
import { ModelHeader } from "./header.mjs";
import { conflicts, judge, parseBoard, shuffled } from "./sudoku_rules.mjs";
import { announce, calm, counted, el, help, menu, onNextFrame, percent, Player, spoken, wholeNumber } from "./ui.mjs";

const PENCIL_BELOW = 0.5; // a cell less sure than this shows its candidates instead of one digit
const NEXT_RUN = 250; // ms after the last change of the puzzle until the models run again

const sideOf = (name) => registry.get(name).config.task.side ?? 9;
const asText = (board) => board.map((digit) => digit || ".").join("");

/** A board on the page. It shows clues, or what a frame says, and reports keys and clicks. */
class Board {
  constructor(side, label, { onEdit, onSelect }) {
    Object.assign(this, { side, onEdit, onSelect });
    this.cells = Array.from({ length: side * side }, (_, cell) => this.#cell(cell));
    const rows = Array.from({ length: side }, (_, row) =>
      el(
        "div.row",
        { role: "row" },
        this.cells.slice(row * side, (row + 1) * side).map(({ node }) => node),
      ),
    );
    this.grid = el(
      `div.board.side${side}`,
      { role: "grid", "aria-label": label, onkeydown: (event) => this.#key(event) },
      rows,
    );
    this.element = el("div.board-room", {}, this.grid);
    this.selected = null;
    this.cells[0].node.tabIndex = 0;
  }

  #cell(cell) {
    const digit = el("span.digit");
    const marks = Array.from({ length: this.side }, (_, i) => el("span", {}, String(i + 1)));
    const pencil = el("span.pencil", { "aria-hidden": "true" }, marks);
    const node = el(
      "div.cell",
      { role: "gridcell", tabindex: -1, onclick: () => this.select(cell, true) },
      digit,
      pencil,
    );
    return { node, digit, marks };
  }

  select(cell, focus = false) {
    if (this.selected !== null) this.cells[this.selected].node.classList.remove("selected");
    this.cells.forEach(({ node }) => {
      node.tabIndex = -1;
    });
    this.selected = cell;
    if (cell === null) {
      this.cells[0].node.tabIndex = 0;
      return;
    }
    const { node } = this.cells[cell];
    node.classList.add("selected");
    node.tabIndex = 0;
    if (focus) {
      node.focus({ preventScroll: true });
      this.onSelect(cell);
    }
  }

  #key(event) {
    const cell = this.selected ?? 0,
      { side } = this;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const moves = { ArrowUp: -side, ArrowDown: side, ArrowLeft: -1, ArrowRight: 1 };
    if (event.key in moves) {
      const to = cell + moves[event.key],
        sideways = Math.abs(moves[event.key]) === 1;
      const leaves = to < 0 || to >= side * side || (sideways && Math.floor(to / side) !== Math.floor(cell / side));
      if (!leaves) this.select(to, true);
    } else if (/^[0-9]$/.test(event.key) && Number(event.key) <= side) {
      this.onEdit(cell, Number(event.key));
    } else if (event.key === "Backspace" || event.key === "Delete") {
      this.onEdit(cell, 0);
    } else if (event.key === "Escape") {
      this.onSelect(null);
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** Show clues and, where there is one, a frame. */
  draw(clues, frame) {
    const digits = clues.map((clue, cell) => clue || (frame ? frame.classes[cell] : 0));
    const open = (cell) => !clues[cell] && frame && frame.confidence[cell] < PENCIL_BELOW;
    const shown = digits.map((digit, cell) => (open(cell) ? 0 : digit)),
      clashes = conflicts(shown, this.side);
    const outputs = this.side + 1;
    this.cells.forEach(({ node, digit, marks }, cell) => {
      const given = clues[cell] > 0,
        sure = given || !frame ? 1 : frame.confidence[cell],
        pencil = open(cell);
      node.classList.toggle("given", given);
      node.classList.toggle("clash", clashes[cell]);
      node.classList.toggle("unsure", Boolean(pencil));
      digit.textContent = shown[cell] ? String(shown[cell]) : "";
      node.style.setProperty("--sure", sure.toFixed(3));
      if (pencil)
        marks.forEach((mark, i) => {
          mark.style.opacity = frame.probabilities[cell * outputs + i + 1].toFixed(2);
        });
      const place = `row ${Math.floor(cell / this.side) + 1}, column ${(cell % this.side) + 1}`;
      const opinion = `${pencil ? "undecided, perhaps" : "model says"} ${digits[cell]}, ${percent(sure)} sure`;
      const content = given ? `clue ${clues[cell]}` : frame ? opinion : "open";
      node.setAttribute("aria-label", `${place}: ${content}${clashes[cell] ? ", conflict" : ""}`);
    });
    return {
      clashes: clashes.filter(Boolean).length,
      valid: digits.every(Boolean) && !conflicts(digits, this.side).some(Boolean),
    };
  }
}

/** One model's card: its menu, its board, and what it has come to. */
class ModelCard {
  constructor(tab, entry) {
    this.tab = tab;
    this.entry = entry;
    const colour = `var(--${entry.block})`;
    this.board = new Board(tab.side, `Board of ${entry.name}`, {
      onEdit: (cell, digit) => tab.edit(cell, digit),
      onSelect: (cell) => tab.select(cell, this),
    });
    this.status = el("p.status");
    this.strip = new Strip("Share of open cells that are right, by loop", colour);
    this.bars = el("div.bars", { "aria-hidden": "true" });
    this.header = new ModelHeader(entry, (name) => tab.setModel(this, name));
    this.element = el(
      "article.card",
      { style: { "--own": colour } },
      this.header.element,
      this.board.element,
      this.strip.element,
      this.status,
      this.bars,
    );
  }

  start(clues) {
    this.trajectory?.close();
    this.right = [0];
    this.solvedAt = null;
    this.trajectory = new Trajectory(this.entry, clues, {
      onFrame: (frame) => this.#take(frame),
      onError: (error) => this.tab.say(error.message),
    });
    this.trajectory.extend(this.tab.player.max);
  }

  #take(frame) {
    const { clues, solution, side } = this.tab;
    const digits = clues.map((clue, cell) => clue || frame.classes[cell]);
    const open = clues.flatMap((clue, cell) => (clue ? [] : [cell]));
    const right = solution
      ? open.filter((cell) => digits[cell] === solution[cell]).length / Math.max(open.length, 1)
      : frame.confidence.reduce((a, b) => a + b, 0) / digits.length;
    this.right.push(right);
    const valid = digits.every(Boolean) && !conflicts(digits, side).some(Boolean);
    if (valid && this.solvedAt === null) this.solvedAt = frame.loop;
    this.tab.arrived();
  }

  draw(loop) {
    const { clues } = this.tab,
      done = this.trajectory?.done ?? 0;
    const shown = Math.min(loop, done),
      frame = this.trajectory?.frames[shown] ?? null;
    const { clashes, valid } = this.board.draw(clues, frame);
    const solved = frame && valid;
    this.element.classList.toggle("solved", Boolean(solved));
    this.strip.draw(this.right ?? [0], this.tab.player.max, loop);
    this.status.replaceChildren(...this.#words(frame, solved, clashes));
    this.#drawBars(frame);
  }

  #words(frame, solved, clashes) {
    if (!frame) return [el("span.soft", {}, "Before the first loop: the clues alone.")];
    const open = this.tab.clues.flatMap((clue, cell) => (clue ? [] : [cell]));
    const sure = open.length ? open.reduce((sum, cell) => sum + frame.confidence[cell], 0) / open.length : 1;
    const head = solved
      ? el("b.good", {}, `✓ Solved at loop ${this.solvedAt}`)
      : el("b", {}, clashes ? `${counted(clashes, "cell")} in conflict` : "No conflict, not finished");
    const lost =
      !solved && this.solvedAt !== null && frame.loop > this.solvedAt
        ? ` Solved at loop ${this.solvedAt}, then lost.`
        : "";
    return [head, el("span.soft", {}, `${percent(sure)} sure on average.${lost}`)];
  }

  /** Show how sure the model is of every digit in the selected cell. */
  #drawBars(frame) {
    const cell = this.tab.selected,
      { side } = this.tab;
    if (cell === null || !frame || this.tab.clues[cell]) {
      this.bars.replaceChildren();
      return;
    }
    this.bars.replaceChildren(
      ...Array.from({ length: side }, (_, i) => {
        const share = frame.probabilities[cell * (side + 1) + i + 1];
        return el(
          "div",
          { title: percent(share, 1) },
          el("i", { style: { "--share": share.toFixed(3) } }),
          el("span", {}, String(i + 1)),
        );
      }),
    );
  }

  close() {
    this.trajectory?.close();
  }
}

export class SudokuTab {
  side = 9;
  selected = null;
  cards = [];
  solution = null;

  constructor(root, data) {
    this.puzzles = data.puzzles;
    this.clues = Array(81).fill(0);
    this.player = new Player({
      trained: 32,
      onChange: (loop) => this.draw(loop),
      onMore: (loops) => this.cards.forEach((card) => card.trajectory?.extend(loops)),
      describe: () => this.cards.map(({ entry, status }) => `${entry.block}: ${spoken(status)}`).join(" "),
    });
    this.redraw = onNextFrame(() => this.draw(this.player.loop));
    this.note = el("p.note", { role: "status" });
    this.about = el("p.soft.source");
    this.text = el("input.puzzle", {
      type: "text",
      spellcheck: "false",
      autocomplete: "off",
      "aria-label": "The puzzle as text: type or paste 81 digits or dots",
      placeholder: "Type or paste 81 digits or dots",
      onchange: () => this.paste(this.text.value),
    });
    this.famous = menu(
      "Famous puzzles",
      [["", "Famous puzzles…"], ...this.puzzles.famous.map(({ name }, i) => [String(i), name])],
      "",
      (i) => {
        if (i !== "") this.pickFamous(Number(i));
      },
    );
    const fresh = (level) =>
      el("button", { type: "button", onclick: () => this.pickNew(level) }, level[0].toUpperCase() + level.slice(1));
    this.compare = el("input", {
      type: "checkbox",
      id: "compare",
      onchange: () => this.setCompare(this.compare.checked),
    });
    this.room = el("div.cards");
    this.pad = this.#pad();
    root.append(
      el(
        "div.toolbar",
        {},
        this.famous,
        el(
          "span.group",
          { role: "group", "aria-label": "New puzzle by difficulty" },
          el("span.soft", {}, "New:"),
          fresh("easy"),
          fresh("medium"),
          fresh("hard"),
        ),
        el(
          "button.quiet",
          {
            type: "button",
            onclick: () => {
              this.player.pause();
              this.setPuzzle(Array(this.clues.length).fill(0));
              this.select(0);
            },
          },
          "Clear",
        ),
        el("label.switch", { for: "compare" }, this.compare, " Two models"),
        this.text,
      ),
      this.about,
      this.note,
      this.room,
      this.pad,
      this.player.element,
      help(
        "Dark digits are the clues. Coloured digits are what the model would answer after this loop: the fainter, the less sure. A cell that is not yet decided shows its candidates, each as dark as it is likely. Red cells break a rule. The curve under a board is the share of open cells that are right after each loop.",
        "The looped model applies the same block in every loop. The modulated one scales the block by functions of the loop index. Neither was told the rules of Sudoku, and neither searches: each loop is one pass through the same weights.",
        "Keys: arrows move on the board, digits set a clue, Backspace clears it. Outside the board, space plays, and the arrow keys step through the loops (comma and full stop do so everywhere).",
      ),
    );
    document.addEventListener("paste", (event) => {
      if (root.hidden || event.target.closest?.("input, textarea")) return;
      this.paste(event.clipboardData.getData("text"));
    });
  }

  /** Buttons for digits, for those without a keyboard; shown while a cell is selected. */
  #pad() {
    const press = (digit) => () => {
      if (this.selected !== null) this.edit(this.selected, digit);
    };
    const digits = Array.from({ length: 9 }, (_, i) =>
      el("button", { type: "button", onclick: press(i + 1) }, String(i + 1)),
    );
    return el(
      "div.pad",
      { role: "group", "aria-label": "Set the selected cell", hidden: true },
      digits,
      el("button", { type: "button", "aria-label": "Clear the cell", onclick: press(0) }, "⌫"),
    );
  }

  /** Show the state of a link, or a puzzle to begin with. */
  open(state) {
    const models = modelsOf("sudoku"),
      byBlock = (block) => models.find((entry) => entry.block === block) ?? models[0],
      chosen = (name, block) => (models.find((entry) => entry.name === name) ?? byBlock(block)).name;
    const first = chosen(state.m, "looped"),
      second = chosen(state.vs, "modulated");
    this.second = second;
    const wide = matchMedia("(min-width: 820px)").matches,
      sameSide = sideOf(first) === sideOf(second);
    this.compare.checked = sameSide && (state.p ? Boolean(state.vs) : wide && models.length > 1);
    this.#build([first, ...(this.compare.checked ? [second] : [])]);
    const start = this.puzzles.famous.findIndex((puzzle) => puzzle.start);
    if (!state.p && this.side !== 9) this.#showExample(first);
    else if (!state.p) this.pickFamous(start, !calm());
    else {
      try {
        this.setPuzzle(parseBoard(state.p, this.side));
      } catch (error) {
        this.pickFamous(start);
        this.say(error.message);
      }
    }
    this.say([missing(["sudoku"], state.m, state.vs), this.note.textContent].filter(Boolean).join(" "));
    const loop = wholeNumber(state.loop, 0, Infinity);
    if (state.p && loop) this.player.goTo(loop);
  }

  /** List the models anew, as a visitor may have added one. */
  show() {
    this.cards.forEach(({ header }) => header.refresh());
  }

  /** Show the puzzle that came with a model: a board of another side has no famous ones. */
  async #showExample(name) {
    const { about } = await openModel(name);
    this.setPuzzle(about.example?.inputs[0] ?? Array(this.side ** 2).fill(0), "The example that came with the model.");
    this.player.play();
  }

  state() {
    const loop = this.player.loop || null;
    return { p: asText(this.clues), m: this.cards[0].entry.name, vs: this.cards[1]?.entry.name, loop };
  }

  #build(names) {
    this.cards.forEach((card) => card.close());
    this.side = sideOf(names[0]);
    this.cards = names.map((name) => new ModelCard(this, registry.get(name)));
    this.room.replaceChildren(...this.cards.map((card) => card.element));
    this.room.classList.toggle("two", this.cards.length === 2);
    this.player.setTrained(
      Math.max(...this.cards.map(({ entry }) => entry.loops)),
      Math.max(...this.cards.map(({ entry }) => mostLoops(entry))),
    );
    if (this.clues.length !== this.side ** 2) this.clues = Array(this.side ** 2).fill(0);
  }

  setModel(card, name) {
    const names = this.cards.map((each) => (each === card ? name : each.entry.name));
    if (names.length === 2 && sideOf(names[0]) !== sideOf(names[1])) {
      names.length = 0;
      names.push(name);
      this.compare.checked = false;
    }
    const before = this.side;
    this.#build(names);
    if (this.side === before) this.setPuzzle(this.clues);
    else this.#showExample(names[0]);
  }

  setCompare(both) {
    const first = this.cards[0].entry.name;
    if (!both && this.cards[1]) this.second = this.cards[1].entry.name;
    const second = sideOf(this.second) === this.side ? this.second : first;
    this.#build(both ? [first, second] : [first]);
    this.setPuzzle(this.clues);
  }

  pickFamous(number, play = true) {
    this.setPuzzle(parseBoard(this.puzzles.famous[number].puzzle));
    if (play) this.player.play();
  }

  pickNew(level) {
    const list = this.puzzles[level],
      puzzle = list[Math.floor(Math.random() * list.length)];
    this.setPuzzle(
      shuffled(parseBoard(puzzle)),
      `A new ${level} puzzle: a random symmetric image of one that the models never saw in training.`,
    );
    this.player.play();
  }

  paste(text) {
    try {
      this.setPuzzle(parseBoard(text, this.side));
      this.player.play();
    } catch (error) {
      this.say(error.message);
      this.text.value = text.trim();
    }
  }

  say(text) {
    this.note.textContent = text;
    this.note.hidden = !text;
  }

  edit(cell, digit) {
    this.player.pause();
    const clues = this.clues.slice();
    clues[cell] = digit;
    this.setPuzzle(clues);
    this.select(cell);
  }

  select(cell, from = null) {
    this.selected = cell;
    this.cards.forEach((card) => {
      if (card !== from) card.board.select(cell);
    });
    this.pad.hidden = cell === null;
    this.draw(this.player.loop);
  }

  setPuzzle(clues, given = "") {
    const famous = this.puzzles.famous.findIndex(({ puzzle }) => puzzle === clues.join(""));
    const about = famous < 0 ? given : `${this.puzzles.famous[famous].name}. ${this.puzzles.famous[famous].source}`;
    if (clues.length !== this.side ** 2)
      this.#build([modelsOf("sudoku").find(({ name }) => sideOf(name) ** 2 === clues.length).name]);
    this.clues = clues;
    this.select(null);
    this.famous.value = famous < 0 ? "" : String(famous);
    this.about.textContent = about;
    this.text.value = asText(clues);
    const { solution, note } = judge(clues, this.side);
    this.solution = solution;
    this.say(note);
    this.cards.forEach((card) => {
      card.trajectory?.close();
      card.trajectory = null;
      card.right = [0];
    });
    this.player.setTrained(this.player.trained);
    this.player.reach(0);
    this.player.show(0);
    clearTimeout(this.waiting);
    const run = () => {
      if (clues.some(Boolean)) this.cards.forEach((card) => card.start(clues));
    };
    if (about) run();
    else this.waiting = setTimeout(run, NEXT_RUN);
  }

  /** A frame has come: let the player go on, and show it if it is the one looked at. */
  arrived() {
    const before = this.player.available;
    const done = Math.min(this.player.max, ...this.cards.map(({ trajectory }) => trajectory?.reach ?? 0));
    this.player.reach(done);
    this.redraw();
    if (done === this.player.max && before < done) {
      announce(
        this.cards
          .map(
            ({ entry, solvedAt }) =>
              `${entry.block}: ${solvedAt ? `solved at loop ${solvedAt}` : `not solved in ${done} loops`}`,
          )
          .join(". "),
      );
    }
  }

  draw(loop) {
    this.cards.forEach((card) => card.draw(loop));
  }

  key(event) {
    return this.player.key(event);
  }
}
