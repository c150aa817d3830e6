// Two words without a model: the dynamic programme with its best path, the layout as tokens, and drawing pairs.

import { Friendly } from "./friendly.mjs";

export const LETTERS = "abcdefghijklmnopqrstuvwxyz";

const SHORTER = 3,
  LONGER = 2; // how much shorter or longer the second string of an edited pair may be

const isEdited = (task) => task.name === "edit-distance" || task.pairs === "edited";
const isNear = (task) => isEdited(task) && (task.lengths ?? "near") === "near";
const slack = (task) => (isNear(task) ? LONGER : 0);
export const longestSecond = (task) => task.length + slack(task);
export const shortestTrained = (task) => task.min_length ?? task.length;

/** Return the table of answers for all pairs of prefixes, and a best path through it as [i, j, step]. */
export function solveWords(task, first, second) {
  return task.name === "lcs" ? commonSubsequence(first, second) : editDistance(task, first, second);
}

function editDistance(task, first, second) {
  const { insert_cost: insert, delete_cost: remove, replace_cost: replace, borders } = task;
  const unit = borders === "unit";
  const table = Array.from({ length: first.length + 1 }, (_, i) => [i * (unit ? 1 : remove)]);
  for (let j = 1; j <= second.length; j++) table[0][j] = j * (unit ? 1 : insert);
  for (let i = 1; i <= first.length; i++) {
    for (let j = 1; j <= second.length; j++) {
      const change = table[i - 1][j - 1] + (first[i - 1] === second[j - 1] ? 0 : replace);
      table[i][j] = Math.min(table[i][j - 1] + insert, table[i - 1][j] + remove, change);
    }
  }
  return {
    table,
    path: walk(first, second, (i, j) => {
      if (i && j && table[i][j] === table[i - 1][j - 1] + (first[i - 1] === second[j - 1] ? 0 : replace)) {
        return first[i - 1] === second[j - 1] ? "keep" : "replace";
      }
      return i && (!j || table[i][j] === table[i - 1][j] + remove) ? "remove" : "insert";
    }),
  };
}

function commonSubsequence(first, second) {
  const table = Array.from({ length: first.length + 1 }, () => Array(second.length + 1).fill(0));
  for (let i = 1; i <= first.length; i++) {
    for (let j = 1; j <= second.length; j++) {
      table[i][j] =
        first[i - 1] === second[j - 1] ? table[i - 1][j - 1] + 1 : Math.max(table[i][j - 1], table[i - 1][j]);
    }
  }
  return {
    table,
    path: walk(first, second, (i, j) => {
      if (i && j && first[i - 1] === second[j - 1]) return "keep";
      return i && (!j || table[i - 1][j] >= table[i][j - 1]) ? "remove" : "insert";
    }),
  };
}

/** Walk back from the end of both words; `step` says how the best answer at (i, j) was come by. */
function walk(first, second, step) {
  const path = [];
  for (let i = first.length, j = second.length; i || j;) {
    const taken = step(i, j);
    path.push([i, j, taken]);
    if (taken !== "insert") i -= 1;
    if (taken !== "remove") j -= 1;
  }
  return path.concat([[0, 0, "start"]]).reverse();
}

/** Return both words in lower case, or say in one sentence what a model of this task cannot read. */
export function checkWords(task, first, second) {
  const words = [first, second].map((word) => word.trim().toLowerCase());
  const letters = LETTERS.slice(0, task.alphabet);
  const strange = [...words.join("")].find((letter) => !letters.includes(letter));
  if (strange !== undefined)
    throw new Friendly(
      `This model knows the letters ${letters[0]} to ${letters.at(-1)}, but not ${strange.trim() ? `“${strange}”` : "spaces"}.`,
    );
  const most = [task.length, longestSecond(task)];
  words.forEach((word, i) => {
    const which = i ? "second" : "first";
    if (!word) throw new Friendly(`The ${which} word is empty. Type at least one letter.`);
    if (word.length > most[i])
      throw new Friendly(`The ${which} word has ${word.length} letters, and this model reads at most ${most[i]}.`);
  });
  return words;
}

/** Say in what a pair differs from those that a model was trained on; nothing where it does not. */
export function unlikeTraining(task, first, second) {
  const least = shortestTrained(task),
    span = least === task.length ? `exactly ${least}` : `${least} to ${task.length}`;
  if (first.length < least)
    return `This model was trained on words of ${span} letters, so its answer for shorter ones is a guess. “Fill up” adds random letters to both.`;
  const gap = second.length - first.length;
  if (isNear(task) && (gap < -SHORTER || gap > LONGER))
    return `This model was trained on second words of ${first.length - SHORTER} to ${first.length + LONGER} letters beside a first word of ${first.length}.`;
  if (!isNear(task) && second.length < least)
    return `This model was trained on words of ${span} letters, so its answer for shorter ones is a guess. “Fill up” adds random letters to both.`;
  const used = new Set(first + second).size,
    most = task.max_letters ?? 26;
  if (isEdited(task) && used > most)
    return `This model was trained on pairs with at most ${most} different letters, and these have ${used}.`;
  return "";
}

/** Lay a pair out as tokens: first, bar, second, padding, equals sign. */
export function encodeWords(task, first, second) {
  const tokens = Array(2 * task.length + slack(task) + 2).fill(0);
  [...first, "|", ...second].forEach((letter, i) => {
    tokens[i] = letter === "|" ? task.alphabet + 1 : LETTERS.indexOf(letter) + 1;
  });
  tokens[tokens.length - 1] = task.alphabet + 2;
  return tokens;
}

/** Draw a pair as the paper does for training: see Algorithm 1 of its appendix for edited pairs. */
export function drawPair(task, random) {
  const below = (count) => Math.floor(random() * count);
  const length = shortestTrained(task) + below(task.length - shortestTrained(task) + 1);
  const [fewest, most] = isEdited(task)
    ? [task.min_letters ?? 3, task.max_letters ?? 10]
    : [task.min_letters ?? task.alphabet, task.max_letters ?? task.alphabet];
  const all = [...LETTERS.slice(0, task.alphabet)],
    letters = [];
  for (let count = fewest + below(most - fewest + 1); count > 0; count--)
    letters.push(all.splice(below(all.length), 1)[0]);
  const word = (size) => Array.from({ length: size }, () => letters[below(letters.length)]);
  const first = word(length);
  if (!isEdited(task))
    return [first.join(""), word(shortestTrained(task) + below(task.length - shortestTrained(task) + 1)).join("")];
  const [low, high] = isNear(task)
    ? [Math.max(1, length - SHORTER), length + LONGER]
    : [shortestTrained(task), task.length];
  if (random() < 0.4) return [first.join(""), word(low + below(high - low + 1)).join("")];
  for (;;) {
    const copy = first.slice();
    for (let edits = task.edits === "uniform" ? 1 + below(length) : length; edits > 0; edits--) {
      const place = below(Math.max(copy.length, 1)),
        letter = letters[below(letters.length)],
        action = copy.length ? below(3) : 2;
      if (action === 2) copy.splice(place, 0, letter);
      else copy.splice(place, 1, ...(action === 1 ? [letter] : []));
    }
    if (copy.length >= low && copy.length <= high) return [first.join(""), copy.join("")];
  }
}

/** Add random letters to the end of both words until they have the length of training. */
export function fillUp(task, first, second, random) {
  const least = shortestTrained(task),
    used = [...new Set(first + second)];
  const letters = used.length > 1 ? used : [...LETTERS.slice(0, task.alphabet)];
  const more = (count) =>
    Array.from({ length: Math.max(count, 0) }, () => letters[Math.floor(random() * letters.length)]).join("");
  const tail = more(least - first.length);
  const filled = [first + tail, second + tail];
  return [filled[0], filled[1].slice(0, longestSecond(task)) + more(least - filled[1].length)];
}
