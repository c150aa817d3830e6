// Tabs, links that carry the page's state, light and dark, keys.

import { registry } from "./client.mjs";
import { CountdownTab } from "./tab_countdown.mjs";
import { InsideTab } from "./tab_inside.mjs";
import { OwnTab } from "./tab_own.mjs";
import { SudokuTab } from "./tab_sudoku.mjs";
import { TheoryTab } from "./tab_theory.mjs";
import { WordsTab } from "./tab_words.mjs";
import { announce } from "./ui.mjs";

const TABS = {
  sudoku: SudokuTab,
  words: WordsTab,
  countdown: CountdownTab,
  inside: InsideTab,
  theory: TheoryTab,
  own: OwnTab,
};

const data = JSON.parse(document.getElementById("page-data").textContent);
for (const entry of data.models) registry.set(entry.name, entry);

const opened = new Map();
let current = null;

/** Read a link's state: #tab?key=value&... */
function linkState() {
  const [name, query = ""] = location.hash.slice(1).split("?");
  return { name: Object.hasOwn(TABS, name) ? name : "sudoku", state: Object.fromEntries(new URLSearchParams(query)) };
}

function link() {
  const pairs = Object.entries(opened.get(current)?.state() ?? {}).filter(
    ([, value]) => value !== null && value !== undefined && value !== "",
  );
  const query = new URLSearchParams(pairs.map(([key, value]) => [key, String(value)])).toString();
  return `${location.href.split("#")[0]}#${current}${query ? `?${query.replaceAll("%2F", "/")}` : ""}`;
}

/** Show a tab; `state` is what a link or another tab wants it to show. */
export function openTab(name, state = null) {
  if (current && current !== name) opened.get(current)?.hide?.();
  current = name;
  for (const key of Object.keys(TABS)) {
    const chosen = key === name,
      tab = document.getElementById(`tab-${key}`);
    document.getElementById(`panel-${key}`).hidden = !chosen;
    tab.setAttribute("aria-selected", String(chosen));
    tab.tabIndex = chosen ? 0 : -1;
    if (chosen) tab.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
  const fresh = !opened.has(name);
  if (fresh)
    opened.set(name, new TABS[name](document.getElementById(`panel-${name}`), data, { openTab, tabs: opened }));
  if (fresh || state) opened.get(name).open(state ?? {});
  else opened.get(name).show?.();
}

function rememberInAddress() {
  try {
    history.replaceState(null, "", link());
  } catch {
    // some browsers refuse this for pages from disk; the button still copies the link
  }
}

document.getElementById("tabs").addEventListener("click", (event) => {
  const tab = event.target.closest("[role=tab]");
  if (!tab) return;
  openTab(tab.id.replace("tab-", ""));
  rememberInAddress();
});
document.getElementById("tabs").addEventListener("keydown", (event) => {
  const names = Object.keys(TABS),
    steps = { ArrowRight: 1, ArrowLeft: -1 };
  if (!(event.key in steps)) return;
  const next = names[(names.indexOf(current) + steps[event.key] + names.length) % names.length];
  openTab(next);
  document.getElementById(`tab-${next}`).focus();
  event.preventDefault();
  event.stopPropagation();
});

document.getElementById("share").addEventListener("click", async ({ currentTarget }) => {
  rememberInAddress();
  const text = link(),
    label = currentTarget.querySelector("span");
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    window.prompt("Copy this link:", text);
    return;
  }
  label.textContent = "Copied";
  announce("The link is in the clipboard.");
  setTimeout(() => {
    label.textContent = "Copy link";
  }, 1500);
});

// Inside another page, such as the documentation: offer more room.
const ownWindow = document.getElementById("own-window");
ownWindow.hidden = window.parent === window;
ownWindow.addEventListener("click", () => {
  ownWindow.href = link();
});
ownWindow.href = location.href.split("#")[0];

const root = document.documentElement;
try {
  const theme = localStorage.getItem("theme");
  if (theme) root.dataset.theme = theme;
} catch {
  // no storage: the system's choice stands
}
document.getElementById("theme").addEventListener("click", () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try {
    localStorage.setItem("theme", root.dataset.theme);
  } catch {
    // as above
  }
  opened.get(current)?.show?.();
});

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  const target = event.target;
  const takesKeys =
    target.matches("input, select, textarea, summary, a") ||
    (target.matches("button") && (event.key === " " || event.key === "Enter"));
  if (takesKeys) return;
  if (opened.get(current)?.key?.(event)) event.preventDefault();
});
window.addEventListener("resize", () => opened.get(current)?.show?.());
window.addEventListener("hashchange", () => {
  const { name, state } = linkState();
  openTab(name, state);
});

// Made at once, so that a file can be dropped on any tab.
opened.set("own", new OwnTab(document.getElementById("panel-own"), data, { openTab, tabs: opened }));
const begin = linkState();
openTab(begin.name, begin.state);
