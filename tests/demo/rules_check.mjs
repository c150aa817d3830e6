// Asks the page's own rules, without any model. usage: node rules_check.mjs QUESTIONS.json
// A question: {rule: name of an exported function, arguments: [...]}; prints the answers, {error} for a friendly refusal.

import { readFileSync } from "node:fs";

import * as countdown from "../../src/looped/demo/web/countdown_rules.mjs";
import { Fraction, ProofNetwork, TARGETS } from "../../src/looped/demo/web/exact.mjs";
import { Friendly } from "../../src/looped/demo/web/friendly.mjs";
import * as sudoku from "../../src/looped/demo/web/sudoku_rules.mjs";
import { randomBy } from "../../src/looped/demo/web/ui.mjs";
import * as words from "../../src/looped/demo/web/words_rules.mjs";

const proofs = {
  /** The decoded outputs of a proof's network after every loop, as exact text. */
  proofOutputs(network, texts, tokens) {
    const trace = new ProofNetwork(network, texts).trace(tokens.map((token) => [Fraction.parse(token)]));
    return trace.map(({ outputs }) => outputs.map(([value]) => value.toString()));
  },
  target: (name, x) => TARGETS[name](x),
};
const draws = {
  shuffledBy: (board, seed) => sudoku.shuffled(board, randomBy(seed)),
  drawPairBy: (task, seed) => words.drawPair(task, randomBy(seed)),
  drawNumbersBy: (task, seed) => countdown.drawNumbers(task, randomBy(seed)),
  fillUpBy: (task, first, second, seed) => words.fillUp(task, first, second, randomBy(seed)),
};
const rules = { ...countdown, ...sudoku, ...words, ...proofs, ...draws };

const answers = JSON.parse(readFileSync(process.argv[2])).map(({ rule, arguments: given }) => {
  try {
    return rules[rule](...given);
  } catch (error) {
    if (!(error instanceof Friendly)) throw error;
    return { error: error.message };
  }
});
console.log(JSON.stringify(answers));
