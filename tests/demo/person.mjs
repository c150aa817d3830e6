// A person goes through the page: every tab, by mouse and keyboard, and does some things wrong.
// usage: node person.mjs CHROMIUM PAGE.html FACTS.json
// FACTS.json: what the package knows: a puzzle with its solution, a pair of strings with the models' answers, and so on.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

import { Browser } from "./chromium.mjs";

const [chromium, file, factsFile] = process.argv.slice(2);
const facts = JSON.parse(readFileSync(factsFile)),
  url = pathToFileURL(file).href;
const shown = (part) => `document.querySelector("#panel-${part}") && !document.querySelector("#panel-${part}").hidden`;
const player = (tab) => `#panel-${tab} .player`;
const loopOf = (tab) => `Number(document.querySelector("${player(tab)} .count b").textContent)`;
const noteSays = (tab, words) =>
  `document.querySelector("#panel-${tab} .note").innerText.includes(${JSON.stringify(words)})`;
const boardText = (card) =>
  `[...document.querySelectorAll("#panel-sudoku .card:nth-child(${card}) .cell")].map((cell) => cell.querySelector(".digit").textContent || ".").join("")`;

async function toLoop(page, tab, loop) {
  const step = `document.querySelector("${player(tab)} input[type=range]")`;
  await page.evaluate(
    `(() => { ${step}.value = ${loop}; ${step}.dispatchEvent(new Event("input", { bubbles: true })); })()`,
  );
  await page.until(`${loopOf(tab)} === ${loop}`);
}

const visits = {
  async sudoku(page) {
    await page.until(shown("sudoku"));
    await page.until(`document.querySelectorAll("#panel-sudoku .card").length === 2`);
    const { puzzle, solution, solved_at: solvedAt, impossible, several } = facts.sudoku;
    await page.fill("#panel-sudoku .puzzle", puzzle);
    await page.until(`${loopOf("sudoku")} > 0`); // it plays by itself
    await toLoop(page, "sudoku", 32);
    await page.until(`document.querySelectorAll("#panel-sudoku .card.solved").length >= 1`);
    assert.equal(await page.evaluate(boardText(1)), solution);
    assert.match(
      await page.text("#panel-sudoku .card:nth-child(1) .status"),
      new RegExp(`Solved at loop ${solvedAt}\\b`),
    );

    await page.click(`${player("sudoku")} [aria-label="One loop back"]`);
    assert.equal(await page.evaluate(loopOf("sudoku")), 31);
    await page.evaluate("document.activeElement.blur()");
    await page.key(".");
    assert.equal(await page.evaluate(loopOf("sudoku")), 32);
    await page.click(`${player("sudoku")} .extra button`); // keep looping
    await page.until(`${loopOf("sudoku")} > 32`);
    await toLoop(page, "sudoku", 40);

    // the same model on both boards: they take turns
    const models = (card) => `#panel-sudoku .card:nth-child(${card}) header select`;
    const both = await page.evaluate(
      `[1, 2].map((card) => document.querySelector(\`#panel-sudoku .card:nth-child(\${card}) header select\`).value)`,
    );
    await page.choose(models(2), both[0]);
    await toLoop(page, "sudoku", 32);
    await page.until(`document.querySelectorAll("#panel-sudoku .card.solved").length === 2`);
    await page.choose(models(2), both[1]);
    await page.click(`${player("sudoku")} .extra button`);
    await toLoop(page, "sudoku", 40);

    await page.click("#share");
    const link = await page.evaluate("location.href");
    assert.match(link, /#sudoku\?.*loop=40/);
    await page.open(link);
    await page.until(`${loopOf("sudoku")} === 40`);
    await page.until(`${boardText(1)} === ${JSON.stringify(solution)}`);

    // by keyboard: go to a cell, type a clue, take it back
    const cell = "#panel-sudoku .card:nth-child(1) .row:nth-child(1) .cell:nth-child(1)";
    await page.click(cell);
    const first = Number(solution[0]);
    await page.key("Backspace");
    await page.until(`document.querySelector("#panel-sudoku .puzzle").value[0] === "."`);
    await page.key(String((first % 9) + 1));
    await page.until(`document.querySelector("#panel-sudoku .note").innerText.includes("no solution")`);
    await page.key("ArrowRight");
    assert.equal(
      await page.evaluate(`document.activeElement.getAttribute("aria-label").startsWith("row 1, column 2")`),
      true,
    );

    await page.fill("#panel-sudoku .puzzle", impossible);
    await page.until(noteSays("sudoku", "no solution"));
    await page.fill("#panel-sudoku .puzzle", several);
    await page.until(noteSays("sudoku", "more than one solution"));
    await page.fill("#panel-sudoku .puzzle", "12345");
    await page.until(noteSays("sudoku", "81 cells"));
    await page.fill("#panel-sudoku .puzzle", puzzle.replace(/./, "q"));
    await page.until(noteSays("sudoku", "“q”"));
    await page.click("#panel-sudoku .toolbar .group button:nth-of-type(1)"); // a new easy one
    await page.until(`!document.querySelector("#panel-sudoku .note").innerText`);

    // links that ask for what is not there
    await page.open(`${url}#sudoku?p=${puzzle}&m=own/elsewhere`);
    await page.until(noteSays("sudoku", "own/elsewhere, which is not in this page"));
    await page.open(`${url}#constructor`);
    await page.until(shown("sudoku"));
    await page.open(`${url}#words?t=toString&loop=2.4&a=cat&b=cut`);
    await page.until(`${loopOf("words")} === 2`);
    await page.open(url);
  },

  async words(page) {
    await page.click("#tab-words");
    for (const { task, first, second, answer, answers, loops } of facts.words) {
      await page.choose(`#panel-words .toolbar select`, task);
      await page.fill("#panel-words .word:nth-child(1)", first);
      await page.fill("#panel-words .word:nth-child(2)", second);
      await page.until(
        `document.querySelector("#panel-words .card.wide p").innerText.includes(${JSON.stringify(String(answer))})`,
      );
      await toLoop(page, "words", loops);
      await page.until(
        `[...document.querySelectorAll("#panel-words .answer")].map((node) => node.textContent).join() === ${JSON.stringify(answers.join())}`,
      );
    }
    await page.fill("#panel-words .word:nth-child(1)", "naïve");
    await page.until(noteSays("words", "“ï”"));
    await page.fill("#panel-words .word:nth-child(1)", "a".repeat(500));
    await page.until(noteSays("words", "500 letters"));
    await page.fill("#panel-words .word:nth-child(1)", "");
    await page.until(noteSays("words", "empty"));
    assert.equal(
      await page.evaluate(`getComputedStyle(document.querySelector("#panel-words .beam")).visibility`),
      "hidden", // nothing of the last pair is left
    );
    await page.click("#panel-words .toolbar button"); // a new pair
    await page.until(`${loopOf("words")} > 0`);
    const cards = `document.querySelectorAll("#panel-words .cards .card").length`;
    assert.equal(await page.evaluate(cards), 1);
    await page.click("#compare-words");
    await page.until(`${cards} === 2 && !document.querySelector("#panel-words .note").innerText`);
    await page.until(`${loopOf("words")} > 0`);
    await page.click("#compare-words");
    await page.until(`${cards} === 1`);
  },

  async countdown(page) {
    await page.click("#tab-countdown");
    const { numbers, target, answer, loops } = facts.countdown;
    await page.until(`document.querySelectorAll("#panel-countdown .number").length === 5`);
    for (const [i, number] of [...numbers, target].entries()) {
      const selector = i < 4 ? `#panel-countdown .number[aria-label="Number ${i + 1}"]` : "#panel-countdown .target";
      await page.fill(selector, String(number));
    }
    await page.until(
      `document.querySelector("#panel-countdown .player .count").innerText.includes("${loops}") && ${loopOf("countdown")} > 0`,
    );
    await toLoop(page, "countdown", loops);
    await page.until(
      `[...document.querySelectorAll("#panel-countdown .steps .sum")].map((node) => [...node.children].map((part) => part.textContent).join(" ")).join(", ") === ${JSON.stringify(answer)}`,
    );
    await page.fill("#panel-countdown .target", "7000");
    await page.until(noteSays("countdown", "between"));
    for (const i of [1, 2, 3, 4]) await page.fill(`#panel-countdown .number[aria-label="Number ${i}"]`, "1");
    await page.fill("#panel-countdown .target", "99");
    await page.until(noteSays("countdown", "No way leads"));
  },

  async inside(page) {
    await page.click("#tab-inside");
    await page.until(`document.querySelectorAll("#panel-inside .chart").length >= 3`);
    await page.until(`document.querySelectorAll("#panel-inside .attention .cell").length === 81`);
    const before = await page.text("#panel-inside .card.full > p");
    await page.choose("#panel-inside .card.full select", "2");
    await page.until(`document.querySelector("#panel-inside .card.full > p").innerText.includes("head 3")`);
    await page.click("#panel-inside .attention .row:nth-child(9) .cell:nth-child(9)");
    await page.until(
      `document.querySelector("#panel-inside .card.full > p").innerText.includes("row 9, column 9 looks")`,
    );
    assert.notEqual(before, await page.text("#panel-inside .card.full > p"));
    await page.key("ArrowUp");
    await page.until(
      `document.querySelector("#panel-inside .card.full > p").innerText.includes("row 8, column 9 looks") && document.activeElement.matches(".cell.selected")`,
    );

    // it follows the puzzle of the Sudoku tab
    const clues = `[...document.querySelectorAll("#panel-inside .attention .cell")].map((cell) => (cell.matches(".given") ? cell.textContent : "0")).join("")`;
    for (const puzzle of [facts.sudoku.puzzle, facts.sudoku.several]) {
      await page.click("#tab-sudoku");
      await page.fill("#panel-sudoku .puzzle", puzzle);
      await page.click("#tab-inside");
      await page.until(`${clues} === ${JSON.stringify(puzzle.replaceAll(".", "0"))}`);
    }
    await page.choose("#panel-inside .toolbar select", facts.inside);
    await page.until(
      `document.querySelector("#panel-inside h2.plain") && document.querySelector("#panel-inside").innerText.includes("Mean squared error")`,
    );
    await page.until(`document.querySelectorAll("#panel-inside .sequence button").length > 20`);
  },

  async theory(page) {
    await page.click("#tab-theory");
    await page.until(`document.querySelectorAll("#panel-theory .plot .net").length === 4`);
    const { function: name, cells, fault, x, right, wrong } = facts.theory;
    const output = `document.querySelector("#panel-theory .exact tbody td").title || document.querySelector("#panel-theory .exact tbody td").textContent`;
    await page.open(`${url}#theory?f=${name}&n=${cells}&t=2&v=paper&x=${x.join("+")}`);
    await page.until(`${output} === ${JSON.stringify(right)}`);
    await page.click("#panel-theory .faults summary");
    await page.click(`#panel-theory .faults input[value="${fault}"]`);
    await page.until(`${output} === ${JSON.stringify(wrong)}`);
    await page.click("#share");
    await page.open(await page.evaluate("location.href"));
    await page.until(`${output} === ${JSON.stringify(wrong)}`);
    await toLoop(page, "theory", cells);
    await page.until(`document.querySelector("#panel-theory").innerText.includes("every token fetches token")`);
    await page.click("#in-strip");
    await page.until(`document.querySelectorAll("#panel-theory .plot .instrip").length === ${cells}`);
  },

  async own(page) {
    await page.click("#tab-own");
    const { model, small, foreign, language, cut, prelude } = facts.own;
    const input = "#panel-own input[type=file]";
    for (const [path, words] of [
      [foreign, "not a safetensors file"],
      [cut, "ends too early"],
      [language, "do not run in this page"],
      [prelude, "a prelude or a coda does not run"],
    ]) {
      await page.files(input, [path]);
      await page.until(noteSays("own", words));
    }
    await page.files(input, [model]);
    await page.until(noteSays("own", "is ready"));
    await page.until(`document.querySelector("#panel-own tbody").innerText.includes("yours")`);
    await page.click("#tab-sudoku");
    await page.until(`document.querySelector('#panel-sudoku .card option[value^="own/"]') !== null`);
    await page.click("#tab-own");
    await page.click("#panel-own tbody tr:nth-child(1) button");
    await page.until(shown("sudoku"));
    await page.until(`document.querySelector("#panel-sudoku .card header select").value.startsWith("own/")`);

    // a small standard model of another board: one loop, and its own example
    await page.click("#tab-own");
    await page.files(input, [small]);
    await page.until(noteSays("own", "small is ready"));
    await page.click("#panel-own tbody tr:nth-child(2) button");
    await page.until(`document.querySelectorAll("#panel-sudoku .card:nth-child(1) .cell").length === 16`);
    await page.until(`${loopOf("sudoku")} === 1`);
  },
};

const browser = new Browser(chromium);
try {
  const page = await browser.page(url);
  for (const [name, visit] of Object.entries(visits)) {
    await visit(page);
    console.log(`${name}: done`);
  }
  assert.deepEqual(page.problems, []);
  const strangers = page.requests.filter((address) => !/^(file:|blob:|data:|about:)/.test(address));
  assert.deepEqual(strangers, [], "the page asked the network");

  // narrow and dark: nothing sticks out of the window, in any tab
  const phone = await browser.page(url, { width: 390, height: 800, dark: true });
  for (const name of Object.keys(visits)) {
    await phone.click(`#tab-${name}`);
    await phone.until(shown(name));
    await new Promise((resolve) => setTimeout(resolve, 300));
    const [content, window] = await phone.evaluate("[document.documentElement.scrollWidth, innerWidth]");
    assert.ok(content <= window, `${name} is ${content} wide in a window of ${window}`);
  }
  assert.equal(await phone.evaluate(`getComputedStyle(document.body).backgroundColor`), "rgb(19, 20, 23)");
  assert.deepEqual(phone.problems, []);
  console.log("phone: done");
} finally {
  await browser.close();
}
