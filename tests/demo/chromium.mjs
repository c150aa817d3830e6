// A small driver for headless Chromium: its DevTools protocol through a pipe, with nothing but Node.

import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const FLAGS = [
  "--headless",
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
  "--disable-dev-shm-usage",
  "--hide-scrollbars",
  "--remote-debugging-pipe",
];
const PATIENCE = 30_000; // ms until something that is waited for must have come

export class Browser {
  #next = 0;
  #waiting = new Map();
  #listeners = [];

  constructor(path) {
    this.folder = mkdtempSync(join(tmpdir(), "chromium-"));
    this.process = spawn(path, [...FLAGS, `--user-data-dir=${this.folder}`, "about:blank"], {
      stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"],
    });
    let rest = "";
    this.process.stdio[4].setEncoding("utf8").on("data", (text) => {
      const messages = (rest + text).split("\0");
      rest = messages.pop();
      for (const message of messages) this.#receive(JSON.parse(message));
    });
  }

  #receive({ id, result, error, method, params, sessionId }) {
    if (id) {
      const { resolve, reject } = this.#waiting.get(id);
      this.#waiting.delete(id);
      if (error) reject(new Error(error.message));
      else resolve(result);
    } else for (const listener of this.#listeners) listener(method, params, sessionId);
  }

  send(method, params = {}, sessionId = undefined) {
    const id = ++this.#next;
    this.process.stdio[3].write(`${JSON.stringify({ id, method, params, sessionId })}\0`);
    return new Promise((resolve, reject) => this.#waiting.set(id, { resolve, reject }));
  }

  listen(listener) {
    this.#listeners.push(listener);
  }

  async page(url, { width = 1300, height = 900, dark = false } = {}) {
    const { targetId } = await this.send("Target.createTarget", { url: "about:blank" });
    const { sessionId } = await this.send("Target.attachToTarget", { targetId, flatten: true });
    const page = new Page(this, sessionId);
    for (const domain of ["Page", "Runtime", "Log", "Network", "DOM"]) await page.send(`${domain}.enable`);
    await page.send("Network.emulateNetworkConditions", {
      offline: true,
      latency: 0,
      downloadThroughput: -1,
      uploadThroughput: -1,
    });
    await page.send("Emulation.setDeviceMetricsOverride", { width, height, deviceScaleFactor: 1, mobile: width < 600 });
    await page.send("Emulation.setEmulatedMedia", {
      features: [{ name: "prefers-color-scheme", value: dark ? "dark" : "light" }],
    });
    await page.open(url);
    return page;
  }

  async close() {
    await this.send("Browser.close").catch(() => {});
    await new Promise((resolve) => (this.process.exitCode === null ? this.process.once("exit", resolve) : resolve()));
    rmSync(this.folder, { recursive: true, force: true, maxRetries: 5, retryDelay: 100 });
  }
}

export class Page {
  problems = [];
  requests = [];

  constructor(browser, sessionId) {
    Object.assign(this, { browser, sessionId });
    browser.listen((method, params, session) => {
      if (session !== sessionId) return;
      if (method === "Runtime.exceptionThrown")
        this.problems.push(params.exceptionDetails.exception?.description ?? params.exceptionDetails.text);
      if (method === "Log.entryAdded" && params.entry.level === "error") this.problems.push(params.entry.text);
      if (method === "Network.requestWillBeSent") this.requests.push(params.request.url.slice(0, 60));
    });
  }

  send(method, params = {}) {
    return this.browser.send(method, params, this.sessionId);
  }

  async open(url) {
    await this.send("Page.navigate", { url: "about:blank" }); // a new hash alone would not load the page anew
    await this.send("Page.navigate", { url });
    await this.until("document.readyState === 'complete'");
  }

  /** Return what an expression gives in the page. */
  async evaluate(expression) {
    const { result, exceptionDetails } = await this.send("Runtime.evaluate", {
      expression,
      awaitPromise: true,
      returnByValue: true,
    });
    if (exceptionDetails)
      throw new Error(`${exceptionDetails.exception?.description ?? exceptionDetails.text} in ${expression}`);
    return result.value;
  }

  /** Wait until an expression is true in the page. */
  async until(expression, patience = PATIENCE) {
    const end = Date.now() + patience;
    for (;;) {
      if (await this.evaluate(expression).catch(() => false)) return;
      if (Date.now() > end)
        throw new Error(
          `waited in vain for ${expression}; the page says ${await this.evaluate("document.querySelector('main')?.innerText.slice(0, 600)")}`,
        );
      await new Promise((resolve) => setTimeout(resolve, 40));
    }
  }

  /** Click in the middle of an element, as a person would: it must be there, visible and not covered. */
  async click(selector) {
    await this.until(`document.querySelector(${JSON.stringify(selector)}) !== null`);
    const { x, y, hit } = await this.evaluate(`(() => {
      const node = document.querySelector(${JSON.stringify(selector)});
      node.scrollIntoView({ block: "center", inline: "center" });
      const box = node.getBoundingClientRect(), x = box.left + box.width / 2, y = box.top + box.height / 2;
      const top = document.elementFromPoint(x, y);
      return { x, y, hit: node === top || node.contains(top) || top?.contains(node) };
    })()`);
    if (!hit) throw new Error(`${selector} is covered or not visible`);
    for (const type of ["mousePressed", "mouseReleased"]) {
      await this.send("Input.dispatchMouseEvent", { type, x, y, button: "left", clickCount: 1 });
    }
  }

  async key(key) {
    const text = key.length === 1 ? key : undefined;
    await this.send("Input.dispatchKeyEvent", { type: "keyDown", key, text, code: key });
    await this.send("Input.dispatchKeyEvent", { type: "keyUp", key, code: key });
  }

  /** Replace what a field holds, and leave the field. */
  async fill(selector, text) {
    await this.click(selector);
    await this.evaluate(`document.querySelector(${JSON.stringify(selector)}).select()`);
    await this.send("Input.insertText", { text });
    await this.evaluate("document.activeElement.blur()");
  }

  choose(selector, value) {
    return this.evaluate(`(() => {
      const menu = document.querySelector(${JSON.stringify(selector)});
      menu.value = ${JSON.stringify(value)};
      if (menu.value !== ${JSON.stringify(value)}) throw new Error("no such choice");
      menu.dispatchEvent(new Event("change", { bubbles: true }));
    })()`);
  }

  text(selector) {
    return this.evaluate(
      `[...document.querySelectorAll(${JSON.stringify(selector)})].map((node) => node.innerText).join("\\n")`,
    );
  }

  async files(selector, paths) {
    const { root } = await this.send("DOM.getDocument");
    const { nodeId } = await this.send("DOM.querySelector", { nodeId: root.nodeId, selector });
    await this.send("DOM.setFileInputFiles", { nodeId, files: paths });
  }
}
