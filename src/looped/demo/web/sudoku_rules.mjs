// Sudoku without a model: reading boards, who shares a unit with whom, conflicts, and all solutions by search.

import { Friendly } from "./friendly.mjs";

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
  const marks = text.replace(/[\s|+\-]/g, "").replace(/[._*?x]/gi, "0");
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

/** Return up to `most` solutions: a search that always fills a cell with the fewest digits left. */
export function solutions(board, most = 2, side = 9) {
  const { peers } = geometry(side),
    all = (1 << side) - 1;
  if (conflicts(board, side).some(Boolean)) return [];
  const found = [],
    filled = board.slice();
  const open = (cell) => {
    let left = all;
    for (const peer of peers[cell]) if (filled[peer]) left &= ~(1 << (filled[peer] - 1));
    return left;
  };
  const bits = (mask) => {
    let count = 0;
    for (; mask; mask &= mask - 1) count += 1;
    return count;
  };
  let steps = 0;
  const search = () => {
    if (found.length >= most || ++steps > 200_000) return;
    let best = -1,
      fewest = side + 1,
      choices = 0;
    for (let cell = 0; cell < filled.length && fewest > 1; cell++) {
      if (filled[cell]) continue;
      const left = open(cell),
        count = bits(left);
      if (count < fewest) [best, fewest, choices] = [cell, count, left];
    }
    if (best < 0) {
      found.push(filled.slice());
      return;
    }
    for (let digit = 1; digit <= side; digit++) {
      if (!(choices & (1 << (digit - 1)))) continue;
      filled[best] = digit;
      search();
      filled[best] = 0;
    }
  };
  search();
  return found;
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
  const found = side === 9 && clues < 17 ? [board, board] : solutions(board, 2, side);
  if (found.length === 1) {
    const note = clues === board.length ? "This board is already full." : "";
    return { solution: found[0], note };
  }
  if (!found.length) return { solution: null, note: "This puzzle has no solution. You can still watch the model try." };
  const few = side === 9 && clues < 17 ? `With ${clues} clues this` : "This";
  return {
    solution: null,
    note: `${few} puzzle has more than one solution. The model was trained on puzzles with exactly one, so it may not settle.`,
  };
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
