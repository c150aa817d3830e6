// Small pictures in SVG and on canvas, in the page's own colours.

import { el, short } from "./ui.mjs";

const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(2)} ${y.toFixed(2)}`).join("");

/** Return a strip that shows one number per loop, and the current loop as a line. Values are shares of 1. */
export class Strip {
  constructor(label, colour) {
    this.element = el("svg.strip", {
      viewBox: "0 0 100 20",
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": label,
    });
    this.element.style.setProperty("--colour", colour);
  }

  draw(values, loops, loop) {
    const x = (t) => (100 * t) / loops,
      y = (share) => 19 - 18 * share;
    const points = values.map((share, t) => [x(t), y(share)]);
    const last = points.at(-1) ?? [0, 19];
    this.element.replaceChildren(
      el("path.area", { d: `${path(points)}L${last[0]} 19L0 19Z` }),
      el("path.line", { d: path(points) }),
      el("line.now", { x1: x(loop), x2: x(loop), y1: 0, y2: 20 }),
    );
  }
}

const LEFT = 48,
  RIGHT = 12,
  TOP = 10,
  BOTTOM = 36;

/** Return the size in pixels at which a chart is drawn: its room's, so that the text in it is of one size everywhere. */
export function sizeIn(room) {
  const width = room.clientWidth || 340; // hidden, it has none
  return { width, height: Math.round(Math.min(290, Math.max(200, 0.56 * width))) };
}

/** Return a line chart for an element. Series: {name, colour, values, dashed}; the first value belongs to loop `first`. */
export function lineChart({
  room,
  label,
  series,
  first = 1,
  log = false,
  marks = [],
  now = null,
  range = null,
  xLabel = "loop",
  onPick = null,
}) {
  const { width, height } = sizeIn(room);
  const all = series.flatMap(({ values }) => values).filter((v) => Number.isFinite(v) && (!log || v > 0));
  const scale = log ? Math.log10 : (v) => v;
  let [bottom, top] = range ?? [Math.min(...all), Math.max(...all)];
  if (!all.length) [bottom, top] = log ? [0.1, 1] : [0, 1];
  if (bottom === top) [bottom, top] = log ? [bottom / 2, top * 2] : [bottom - 0.5, top + 0.5];
  const count = Math.max(...series.map(({ values }) => values.length), 2),
    last = first + count - 1;
  const x = (loop) => LEFT + ((width - LEFT - RIGHT) * (loop - first)) / (last - first);
  const y = (v) =>
    height - BOTTOM - ((height - TOP - BOTTOM) * (scale(v) - scale(bottom))) / (scale(top) - scale(bottom));
  const inside = (v) => Number.isFinite(v) && (!log || v > 0);
  const line = (values) => path(values.map((v, i) => [x(first + i), y(v), v]).filter(([, , v]) => inside(v)));
  const ticks = log ? decades(bottom, top) : [bottom, (bottom + top) / 2, top];
  const svg = el(
    "svg.chart",
    { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
    ticks.map((v) =>
      el(
        "g.tick",
        {},
        el("line", { x1: LEFT, x2: width - RIGHT, y1: y(v), y2: y(v) }),
        el("text", { x: LEFT - 7, y: y(v) + 4, "text-anchor": "end" }, short(v)),
      ),
    ),
    [first, Math.round((first + last) / 2), last].map((loop) =>
      el("text.tick", { x: x(loop), y: height - 20, "text-anchor": "middle" }, String(loop)),
    ),
    el("text.axis", { x: (LEFT + width - RIGHT) / 2, y: height - 4, "text-anchor": "middle" }, xLabel),
    marks
      .filter((loop) => loop > first && loop < last)
      .map((loop) => el("line.mark", { x1: x(loop), x2: x(loop), y1: TOP, y2: height - BOTTOM })),
    series.map(({ values, colour, dashed }) =>
      el("path.line", { d: line(values), style: { stroke: colour }, "stroke-dasharray": dashed ? "4 3" : null }),
    ),
    now !== null && now >= first && now <= last
      ? el("line.now", { x1: x(now), x2: x(now), y1: TOP, y2: height - BOTTOM })
      : null,
  );
  if (onPick) {
    svg.classList.add("pickable");
    svg.addEventListener("pointerdown", (event) => {
      const box = svg.getBoundingClientRect(),
        at = ((event.clientX - box.left) / box.width) * width;
      onPick(
        Math.max(first, Math.min(last, Math.round(first + ((at - LEFT) / (width - LEFT - RIGHT)) * (last - first)))),
      );
    });
  }
  return svg;
}

function decades(bottom, top) {
  const ticks = [];
  for (let power = Math.ceil(Math.log10(bottom)); 10 ** power <= top; power++) ticks.push(10 ** power);
  return ticks.length > 1 ? ticks.slice(0, 5) : [bottom, top];
}

export function legend(series) {
  return el(
    "p.legend",
    {},
    series.map(({ name, colour }) => el("span", {}, el("i", { style: { background: colour } }), name)),
  );
}

const read = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Return a colour of the page as [red, green, blue]. */
export function rgb(name) {
  const hex = read(name).replace("#", "");
  return [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16));
}

/** Draw rows of shares from 0 to 1 as a picture with one pixel per number; -1 to 1 with `below` as the other colour. */
export function heatMap(canvas, rows, colour = "--looped", below = "--modulated") {
  const width = rows[0]?.length ?? 0,
    height = rows.length;
  if (!width) return;
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d"),
    image = context.createImageData(width, height);
  const paper = rgb("--card"),
    above = rgb(colour),
    under = rgb(below);
  rows.forEach((row, i) => {
    for (let j = 0; j < width; j++) {
      const value = Math.max(-1, Math.min(1, row[j])),
        ink = value < 0 ? under : above,
        share = Math.abs(value);
      for (let c = 0; c < 3; c++) image.data[4 * (i * width + j) + c] = paper[c] + (ink[c] - paper[c]) * share;
      image.data[4 * (i * width + j) + 3] = 255;
    }
  });
  context.putImageData(image, 0, 0);
}
