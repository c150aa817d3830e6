// Countdown without a model: tokens, checking a solution step by step, and searching for all of them.

import { Friendly } from "./friendly.mjs";

const OPERATORS = "+*-/",
  EQUALS = 5,
  ZERO = 6,
  STEP = 5;
const SIGNS = { "+": "+", "*": "×", "-": "−", "/": "÷" };

/** Return numbers and target, or say in one sentence why a model of this task cannot take them. */
export function checkNumbers(task, numbers, target) {
  const { count = 4, max_input: most = 99, min_target: low = 10, max_target: high = 100 } = task;
  if (numbers.length < 2 || numbers.length > count)
    throw new Friendly(`This model takes 2 to ${count} numbers, and here are ${numbers.length}.`);
  for (const number of numbers) {
    if (!Number.isInteger(number) || number < 1 || number > most)
      throw new Friendly(`The numbers must be whole and between 1 and ${most}.`);
  }
  if (!Number.isInteger(target) || target < low || target > high)
    throw new Friendly(`The target must be a whole number between ${low} and ${high}.`);
  return { numbers, target };
}

/** Lay numbers and target out as tokens, with a blank for each token of the answer. */
export function encodeNumbers(numbers, target) {
  return [...numbers, target].map((number) => ZERO + number).concat(Array(STEP * (numbers.length - 1)).fill(0));
}

/** Return the steps that the model's classes spell: {words, texts, true, uses, left} each, checked one after the other. */
export function readSteps(numbers, target, classes, confidence) {
  const hand = numbers.slice(),
    steps = [];
  const text = (token) =>
    token >= ZERO ? String(token - ZERO) : token === EQUALS ? "=" : (SIGNS[OPERATORS[token - 1]] ?? "_");
  const take = (number) => {
    const at = hand.indexOf(number);
    if (at >= 0) hand.splice(at, 1);
    return at >= 0;
  };
  for (let place = numbers.length + 1; place < classes.length; place += STEP) {
    const tokens = [...classes.slice(place, place + STEP)],
      [a, operator, b, equals, result] = tokens;
    const wellFormed = a >= ZERO && b >= ZERO && result >= ZERO && operator >= 1 && operator <= 4 && equals === EQUALS;
    const [x, y, z] = [a - ZERO, b - ZERO, result - ZERO];
    const holds = wellFormed && [x + y === z, x * y === z, x - y === z, y !== 0 && x === y * z][operator - 1];
    const missing = wellFormed ? [x, y].filter((number) => !take(number)) : [];
    if (wellFormed) hand.push(z);
    const fault = !wellFormed
      ? "is not a step"
      : !holds
        ? "is false"
        : missing.length
          ? `${missing.join(" and ")} not at hand`
          : "";
    steps.push({
      texts: tokens.map(text),
      sure: [...confidence.slice(place, place + STEP)],
      fault,
      left: hand.slice(),
    });
  }
  const reached = steps.every(({ fault }) => !fault) && hand.length === 1 && hand[0] === target;
  return { steps, reached, ends: steps.at(-1)?.left.at(-1) };
}

/** Return the first solution as text and how many there are, up to `most`; steps have whole results that are not negative. */
export function searchNumbers(numbers, target, largest = 9900, most = 200) {
  let first = null,
    count = 0;
  const search = (hand, steps) => {
    if (count >= most) return;
    if (hand.length === 1) {
      if (hand[0] === target) {
        first ??= steps;
        count += 1;
      }
      return;
    }
    for (let i = 0; i < hand.length; i++) {
      for (let j = i + 1; j < hand.length; j++) {
        const rest = hand.filter((_, k) => k !== i && k !== j),
          high = Math.max(hand[i], hand[j]),
          low = Math.min(hand[i], hand[j]);
        const results = [
          [hand[i], "+", hand[j], hand[i] + hand[j]],
          [hand[i], "×", hand[j], hand[i] * hand[j]],
          [high, "−", low, high - low],
        ];
        if (low && high % low === 0) results.push([high, "÷", low, high / low]);
        for (const [a, sign, b, result] of results) {
          if (result <= largest) search([...rest, result], [...steps, `${a} ${sign} ${b} = ${result}`]);
        }
      }
    }
  };
  search(numbers, []);
  return { first, count };
}

/** Draw numbers and a target that can be reached. */
export function drawNumbers(task, random) {
  const { count = 4, max_input: most = 99, min_target: low = 10, max_target: high = 100 } = task;
  for (;;) {
    const numbers = Array.from({ length: count }, () => 1 + Math.floor(random() * most));
    const target = low + Math.floor(random() * (high - low + 1));
    if (searchNumbers(numbers, target, most * Math.max(most, high), 1).count) return { numbers, target };
  }
}
