// The head of a model's card: its block, a menu with all models of its task, and what is known of it.

import { modelsOf } from "./client.mjs";
import { counted, el, menu, percent } from "./ui.mjs";

export class ModelHeader {
  constructor(entry, onPick) {
    Object.assign(this, { entry, onPick });
    this.room = el("span");
    this.element = el("header", {}, el("h2", {}, entry.block), this.room, el("p.caption", {}, captionOf(entry)));
    this.refresh();
  }

  /** List the models anew if a visitor has added one. */
  refresh() {
    const { name, task } = this.entry,
      models = modelsOf(task);
    if (models.length === this.room.querySelectorAll("option").length) return;
    const options = models.map((each) => [each.name, each.name.replace(`${task}/`, "")]);
    this.room.replaceChildren(menu("Model", options, name, this.onPick));
  }
}

function captionOf({ parameters, loops, test }) {
  const millions = parameters >= 1e5 ? `${(parameters / 1e6).toFixed(1)} M` : parameters.toLocaleString("en");
  const size = `${millions} parameters, ${counted(loops, "loop")}`;
  return test ? `${size}, ${percent(test.value, 1)} right in the test` : size;
}
