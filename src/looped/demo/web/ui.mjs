// Building blocks of the page: elements, numbers as text, the player that walks through the loops, and announcements.

/** Return a new element: el("button.quiet", {onclick, "aria-label": ...}, "text", child, ...). */
export function el(selector, attributes = {}, ...children) {
  const [tag, ...classes] = selector.split(".");
  const svg = SVG_TAGS.has(tag);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  if (classes.length) node.setAttribute("class", classes.join(" "));
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style" && typeof value === "object") {
      for (const [property, content] of Object.entries(value)) node.style.setProperty(property, content);
    } else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}
const SVG_TAGS = new Set([
  "svg",
  "path",
  "line",
  "rect",
  "circle",
  "text",
  "g",
  "polyline",
  "polygon",
  "title",
  "defs",
  "marker",
]);

export const percent = (share, digits = 0) => `${(100 * share).toFixed(digits)} %`;
export const short = (number) => {
  if (number === 0) return "0";
  const size = Math.abs(number);
  return size < 1e-3 || size >= 1e5 ? number.toExponential(1) : String(Number(number.toPrecision(3)));
};
export const counted = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;

export function announce(text) {
  document.getElementById("announce").textContent = text;
}

/** Return what the parts of a line say, one after the other: without the comma they would run together. */
export const spoken = (node) => [...node.children].map((part) => part.textContent.trim()).join(", ");

/** Return what explains a tab, closed at first: one paragraph for each text. */
export const help = (...texts) =>
  el(
    "details.help",
    {},
    el("summary", {}, "What am I looking at?"),
    texts.map((text) => el("p", {}, text)),
  );

/** Return a function that draws with the screen's next frame, once however often it was called before. */
export function onNextFrame(draw) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      draw();
    });
  };
}

/** Return the whole number that a link gives, kept between two bounds; null where it gives none. */
export function wholeNumber(text, low, high) {
  const number = Math.round(Number(text ?? NaN));
  return Number.isNaN(number) ? null : Math.max(low, Math.min(high, number));
}

/** Return a random number generator with a seed, so that a drawn example can be named in a link. */
export function randomBy(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** Return a menu: options are [value, text] pairs, or [group name, [[value, text], ...]]. */
export function menu(label, options, value, onChange) {
  const option = ([key, text]) => el("option", { value: key, selected: key === value }, text);
  const select = el(
    "select",
    { "aria-label": label, onchange: () => onChange(select.value) },
    options.map((entry) =>
      Array.isArray(entry[1]) ? el("optgroup", { label: entry[0] }, entry[1].map(option)) : option(entry),
    ),
  );
  return select;
}

const ICONS = {
  start: "M7 5v14M19 5 9 12l10 7z",
  back: "m15 5-7 7 7 7",
  next: "m9 5 7 7-7 7",
  play: "M8 5v14l11-7z",
  pause: "M8 5v14M16 5v14",
};

export function icon(name) {
  const solid = name === "play" || name === "start";
  return el(
    "svg.icon",
    { viewBox: "0 0 24 24", "aria-hidden": "true", fill: solid ? "currentColor" : "none" },
    el("path", { d: ICONS[name] }),
  );
}

const SPEEDS = { slow: 1.5, steady: 5, fast: 20 };

/**
 * Play, pause, step and slide through the loops. `onChange(loop)` shows a loop, `onMore(loops)` asks for more of them,
 * and `describe()` says what is shown to those who cannot see it.
 */
export class Player {
  loop = 0;
  max = 1;
  available = 0;
  most = 1;
  speed = "steady";
  #timer = null;

  constructor({ trained, onChange, onMore, describe }) {
    Object.assign(this, { trained, onChange, onMore, describe });
    const button = (name, picture, act) =>
      el("button.round", { type: "button", "aria-label": name, title: name, onclick: act }, icon(picture));
    this.playButton = button("Play", "play", () => this.toggle());
    this.slider = el("input", {
      type: "range",
      min: 0,
      max: 1,
      value: 0,
      step: 1,
      "aria-label": "Loop",
      oninput: () => {
        const wanted = Number(this.slider.value); // pausing draws the slider where it was
        this.pause();
        this.show(wanted);
      },
    });
    this.count = el("span.count"); // not an output: a screen reader would read every loop
    this.mark = el("span.trained", { "aria-hidden": "true" }, el("i"), el("span"));
    this.more = el("button.quiet", { type: "button", onclick: () => this.#addLoops() }, "Keep looping");
    this.speedMenu = menu(
      "Speed",
      [
        ["slow", "Slow"],
        ["steady", "Steady"],
        ["fast", "Fast"],
      ],
      this.speed,
      (speed) => {
        this.speed = speed;
        if (this.playing) this.#schedule();
      },
    );
    this.element = el(
      "div.player",
      { role: "group", "aria-label": "Loops" },
      el(
        "div.buttons",
        {},
        button("Back to the start", "start", () => {
          this.pause();
          this.show(0);
        }),
        button("One loop back", "back", () => this.step(-1)),
        this.playButton,
        button("One loop on", "next", () => this.step(1)),
      ),
      el("div.track", {}, this.slider, this.mark),
      this.count,
      el("div.extra", {}, this.speedMenu, this.more),
    );
    this.setTrained(trained);
  }

  get playing() {
    return this.#timer !== null;
  }

  /** Start over with as many loops as the models were trained with; `most` is how many can be run. */
  setTrained(trained, most = this.most) {
    this.trained = trained;
    this.most = most;
    this.setMax(trained);
  }

  setMax(loops) {
    const max = Math.min(loops, this.most);
    this.max = max;
    this.slider.max = max;
    this.mark.style.setProperty("--at", this.trained / max);
    this.mark.lastChild.textContent = `trained: ${this.trained}`;
    this.mark.hidden = max <= this.trained;
    this.more.disabled = max >= this.most;
    this.#draw();
  }

  #addLoops() {
    const from = this.max;
    const max = Math.min(this.max + Math.max(this.trained, 16), this.most);
    this.setMax(max);
    this.onMore(max);
    if (this.loop >= from) this.play();
  }

  /** Say that loops up to this one are computed. */
  reach(loop) {
    this.available = loop;
    this.#draw();
  }

  show(loop) {
    this.loop = Math.max(0, Math.min(loop, this.max));
    this.#draw();
    this.onChange(this.loop);
  }

  /** Show the loop that a link asks for, and have it computed where it lies beyond training. */
  goTo(loop) {
    this.pause();
    if (loop > this.max) {
      this.setMax(loop);
      this.onMore(this.max);
    }
    this.show(loop);
  }

  step(by) {
    this.pause();
    this.show(this.loop + by);
    this.#tell();
  }

  toggle() {
    if (this.playing) {
      this.pause();
      this.#tell();
    } else this.play();
  }

  #tell() {
    announce(`Loop ${this.loop}. ${this.describe()}`);
  }

  play() {
    if (this.loop >= this.max) this.show(0);
    this.#schedule();
    this.#draw();
  }

  pause() {
    clearInterval(this.#timer);
    this.#timer = null;
    this.#draw();
  }

  #schedule() {
    clearInterval(this.#timer);
    this.#timer = setInterval(() => {
      if (this.loop < Math.min(this.available, this.max)) this.show(this.loop + 1);
      if (this.loop >= this.max) this.pause();
    }, 1000 / SPEEDS[this.speed]);
  }

  #draw() {
    this.slider.value = this.loop;
    this.slider.style.setProperty("--share", this.loop / this.max);
    this.slider.setAttribute(
      "aria-valuetext",
      this.loop ? `after loop ${this.loop} of ${this.max}` : "before the first loop",
    );
    this.count.replaceChildren(el("b", {}, String(this.loop)), ` / ${this.max}`, el("span.unseen", {}, " loops"));
    const label = this.playing ? "Pause" : "Play";
    this.playButton.replaceChildren(icon(this.playing ? "pause" : "play"));
    this.playButton.setAttribute("aria-label", label);
    this.playButton.title = label;
    this.element.classList.toggle("waiting", this.playing && this.loop >= this.available && this.loop < this.max);
  }

  /** React to a key that no field has taken; return whether it was one of ours. */
  key(event) {
    const acts = {
      " ": () => this.toggle(),
      ",": () => this.step(-1),
      ".": () => this.step(1),
      ArrowLeft: () => this.step(-1),
      ArrowRight: () => this.step(1),
      Home: () => {
        this.pause();
        this.show(0);
      },
      End: () => {
        this.pause();
        this.show(this.max);
      },
    };
    if (!(event.key in acts)) return false;
    acts[event.key]();
    return true;
  }
}

/** Whether the visitor asked for little motion: then nothing plays by itself. */
export const calm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
