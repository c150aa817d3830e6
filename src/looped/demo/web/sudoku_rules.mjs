// Sudoku without a model: reading boards, who shares a unit with whom, conflicts, and all solutions by search.

import { Friendly } from "./friendly.mjs";
import { counted } from "./ui.mjs";

const geometries = new Map();

/** Return the units of a board: `units`, a list of lists of cells, and `peers`, the cells that share one with a cell. */
export function geometry(side) {
  if (!geometries.has(side)) {
    const box = Math.sqrt(side),
      all = [...Array(side).keys()],
      units = [];
    for (const i of all) {
      units.push(
        all.map((j) => i * side + j),
        all.map((j) => j * side + i),
      );
      const top = box * Math.floor(i / box),
        left = box * (i % box);
      units.push(all.map((j) => (top + Math.floor(j / box)) * side + left + (j % box)));
    }
    const peers = Array.from({ length: side * side }, (_, cell) => {
      const near = new Set(units.filter((unit) => unit.includes(cell)).flat());
      near.delete(cell);
      return [...near];
    });
    geometries.set(side, { side, box, units, peers });
  }
  return geometries.get(side);
}

/** Read a board that a person typed or pasted: digits, with 0, a dot or another mark for an open cell. */
export function parseBoard(text, side = 9) {
  const bare = text.replace(/[\s|+,;]/g, "").replace(/[._*?x]/gi, "0"),
    ruled = bare.replace(/-/g, "");
  // A hyphen draws a line between boxes, or stands for an open cell.
  const marks = ruled.length < side * side && bare.length === side * side ? bare.replace(/-/g, "0") : ruled;
  const strange = [...marks].find((mark) => !/\d/.test(mark) || Number(mark) > side);
  if (strange !== undefined)
    throw new Friendly(`A board has the digits 1 to ${side} and dots for open cells, but this text has “${strange}”.`);
  if (marks.length !== side * side)
    throw new Friendly(`A board has ${side * side} cells, but this text has ${marks.length}.`);
  return [...marks].map(Number);
}

/** Return the cells whose digit stands twice in a row, column or box; 0 is an open cell. */
export function conflicts(board, side = 9) {
  const { peers } = geometry(side);
  return board.map((digit, cell) => digit > 0 && peers[cell].some((peer) => board[peer] === digit));
}

const bits = (mask) => {
  let count = 0;
  for (; mask; mask &= mask - 1) count += 1;
  return count;
};
const MOST_STEPS = 20_000; // of a search: a fraction of a second

/**
 * Return up to `most` solutions, and whether the search came to its end. Each step fills a cell with the fewest digits
 * left, or puts a digit where its unit has a single cell left.
 */
export function solutions(board, most = 2, side = 9) {
  const { peers, units } = geometry(side),
    all = (1 << side) - 1,
    found = [],
    filled = board.map((digit) => (digit ? 1 << (digit - 1) : 0)); // a bit for each digit
  if (conflicts(board, side).some(Boolean)) return { found, complete: true };
  const left = (cell) => all & ~peers[cell].reduce((seen, peer) => seen | filled[peer], 0);
  /** Return a cell and the digits of which one must be right there; null on a full board. */
  const choice = () => {
    const open = filled.map((digit, cell) => (digit ? 0 : left(cell)));
    let best = null,
      fewest = side + 1;
    for (let cell = 0; cell < filled.length && fewest > 1; cell++) {
      const count = filled[cell] ? side + 1 : bits(open[cell]);
      if (count < fewest) [best, fewest] = [{ cell, digits: open[cell] }, count];
    }
    if (fewest < 2 || !best) return best;
    for (const unit of units) {
      let placed = 0,
        once = 0,
        twice = 0;
      for (const cell of unit) {
        placed |= filled[cell];
        twice |= once & open[cell];
        once |= open[cell];
      }
      if ((placed | once) !== all) return { cell: unit[0], digits: 0 }; // a digit has no cell left
      const digits = once & ~twice & -(once & ~twice); // the lowest of those with one cell
      if (digits) return { cell: unit.find((cell) => open[cell] & digits), digits };
    }
    return best;
  };
  let steps = 0;
  const search = () => {
    if (found.length >= most || ++steps > MOST_STEPS) return;
    const next = choice();
    if (!next) found.push(filled.map((digit) => Math.log2(digit) + 1));
    for (let rest = next?.digits ?? 0; rest; rest &= rest - 1) {
      filled[next.cell] = rest & -rest;
      search();
      filled[next.cell] = 0;
    }
  };
  search();
  return { found, complete: steps <= MOST_STEPS };
}

/** Say in one sentence what is wrong with a puzzle, or nothing; return its solution where there is exactly one. */
export function judge(board, side = 9) {
  const clues = board.filter(Boolean).length;
  if (!clues)
    return { solution: null, note: "The board is empty. Type some digits, paste a puzzle, or pick one above." };
  if (conflicts(board, side).some(Boolean)) {
    return {
      solution: null,
      note: "Two equal clues share a row, column or box, so this puzzle has no solution. You can still watch the model try.",
    };
  }
  const few = side === 9 && clues < 17; // fewer have never one solution
  const { found, complete } = few ? { found: [board, board] } : solutions(board, 2, side);
  if (found.length > 1) {
    return {
      solution: null,
      note: `${few ? `With ${counted(clues, "clue")} this` : "This"} puzzle has more than one solution. The model was trained on puzzles with exactly one, so it may not settle.`,
    };
  }
  if (!complete)
    return { solution: null, note: "It takes too long here to find out whether this puzzle has exactly one solution." };
  if (!found.length) return { solution: null, note: "This puzzle has no solution. You can still watch the model try." };
  return { solution: found[0], note: clues === board.length ? "This board is already full." : "" };
}

/** Return a random symmetric image of a puzzle: digits renamed, rows, columns and bands shuffled, perhaps transposed. */
export function shuffled(board, random = Math.random) {
  const permuted = (items) => {
    const list = [...items];
    for (let i = list.length - 1; i > 0; i--) {
      const j = Math.floor(random() * (i + 1));
      [list[i], list[j]] = [list[j], list[i]];
    }
    return list;
  };
  const lines = () => permuted([0, 1, 2]).flatMap((band) => permuted([0, 1, 2]).map((line) => 3 * band + line));
  const digits = [0, ...permuted([1, 2, 3, 4, 5, 6, 7, 8, 9])],
    rows = lines(),
    columns = lines(),
    turned = random() < 0.5;
  return board.map((_, cell) => {
    const row = rows[Math.floor(cell / 9)],
      column = columns[cell % 9];
    return digits[board[turned ? 9 * column + row : 9 * row + column]];
  });
}
