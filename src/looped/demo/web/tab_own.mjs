// Your models: a file made by `looped models pack`, dropped on the page, joins the models of its task.

import { addOwnModel, registry } from "./client.mjs";
import { counted, el, percent } from "./ui.mjs";

const HOMES = {
  sudoku: "sudoku",
  "edit-distance": "words",
  lcs: "words",
  countdown: "countdown",
  "decision-tree": "inside",
};

export class OwnTab {
  constructor(root, data, { openTab }) {
    this.openTab = openTab;
    this.note = el("p.note", { role: "status" });
    this.list = el("tbody");
    const input = el("input", {
      type: "file",
      accept: ".safetensors",
      multiple: true,
      onchange: () => {
        this.take([...input.files]);
        input.value = "";
      },
    });
    this.drop = el(
      "div.drop",
      {},
      el("h2", {}, "Drop a model here"),
      el(
        "p.soft",
        {},
        "A .safetensors file made by ",
        el("code", {}, "looped models pack"),
        ". It stays on your computer.",
      ),
      el("label", {}, input, el("span", {}, "Choose a file")),
    );
    root.append(
      this.drop,
      this.note,
      el(
        "article.card.wide",
        {},
        el("header", {}, el("h2.plain", {}, "Models in this page")),
        el(
          "div.scroll",
          {},
          el(
            "table.facts",
            { "aria-label": "Models" },
            el(
              "thead",
              {},
              el(
                "tr",
                {},
                ["Model", "Loops", "Parameters", "Test", el("span.unseen", {}, "Watch")].map((text) =>
                  el("th", { scope: "col" }, text),
                ),
              ),
            ),
            this.list,
          ),
        ),
      ),
    );
    const over = (on) => (event) => {
      if (root.hidden && on && ![...(event.dataTransfer?.types ?? [])].includes("Files")) return;
      event.preventDefault();
      this.drop.classList.toggle("over", on);
    };
    // A file may be dropped anywhere: the page then comes to this tab.
    addEventListener("dragover", over(true));
    addEventListener("dragleave", over(false));
    addEventListener("drop", (event) => {
      over(false)(event);
      if (event.dataTransfer?.files.length) {
        this.openTab("own");
        this.take([...event.dataTransfer.files]);
      }
    });
  }

  open() {
    this.show();
  }

  state() {
    return {};
  }

  show() {
    const row = ({ name, task, loops, parameters, test, own }) =>
      el(
        "tr",
        {},
        el("th", { scope: "row" }, name, own ? el("b.good", {}, " yours") : null),
        el("td", {}, String(loops)),
        el("td", {}, parameters.toLocaleString("en")),
        el(
          "td",
          {},
          test ? (test.metric === "accuracy" ? percent(test.value, 1) : `error ${test.value.toFixed(4)}`) : "–",
        ),
        el("td", {}, el("button.quiet", { type: "button", onclick: () => this.#use(name, task) }, "Watch")),
      );
    this.list.replaceChildren(...[...registry.values()].sort((a, b) => Boolean(b.own) - Boolean(a.own)).map(row));
  }

  #use(name, task) {
    this.openTab(HOMES[task], { m: name, t: task });
  }

  async take(files) {
    for (const file of files) {
      this.note.textContent = `Reading ${file.name}…`;
      try {
        const entry = await addOwnModel(file.name, await file.arrayBuffer());
        this.note.textContent = `${entry.name.replace("own/", "")} is ready: ${entry.task}, ${entry.block}, ${counted(entry.loops, "loop")}.`;
      } catch (error) {
        this.note.textContent = `${file.name}: ${error.message}`;
      }
      this.show();
    }
  }
}
