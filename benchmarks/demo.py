"""Measure the demo's page in headless Chromium: how long it takes to open from disk, and how long a loop takes.

`python benchmarks/demo.py` prints one JSON object; `--out FILE` keeps it. `--picture docs/demo.png` draws the
picture of the docs instead. Chromium and Node must be installed.
"""

import argparse
import json
import shutil
import subprocess
import tempfile
from pathlib import Path

from looped.demo import build_demo
from looped.utils.files import save_text

DRIVER = Path(__file__).parent.parent / "tests" / "demo" / "chromium.mjs"
MEASURE = """
const page = await browser.page("about:blank");
const opened = [], loops = [];
for (let i = 0; i < 5; i++) {
  const begin = performance.now();
  await page.open(URL);
  await page.until(`document.querySelectorAll("#panel-sudoku .board").length >= 1`);
  opened.push(performance.now() - begin);
}
// One model at a time, on one core: from the request to the 32nd answer, in the worker that the page itself uses.
const names = await page.evaluate(`
  [...document.querySelectorAll('script[id^="model sudoku/"]')].map((script) => script.id.replace("model ", ""))
`);
for (const name of names) {
  await page.open(URL + "#own");
  loops.push(await page.evaluate(`(async () => {
    const code = document.getElementById("worker-code").textContent;
    const worker = new Worker(window.URL.createObjectURL(new Blob([code], { type: "text/javascript" })));
    const ask = (request) => new Promise((resolve) => {
      worker.onmessage = ({ data }) => { if (data.kind !== "frame") resolve(data); };
      worker.postMessage({ call: 1, ...request });
    });
    const model = document.getElementById("model ${name}").textContent;
    const wasm = document.getElementById("kernel").textContent.trim();
    const inputs = Array.from({ length: 81 }, (_, cell) => (cell % 10 === 0 ? cell / 10 + 1 : 0));
    const begin = performance.now();
    await ask({ kind: "load", source: model, wasm });
    const loaded = performance.now() - begin, times = [];
    for (let i = 0; i < 6; i++) {
      const start = performance.now();
      await ask({ kind: "run", ticket: i + 1, inputs, from: 0, loops: 32, attention: false });
      times.push(performance.now() - start);
    }
    worker.terminate();
    const warm = times.slice(1).sort((a, b) => a - b);
    return { name: "${name}", load_ms: loaded, first_ms: times[0], median_ms: warm[2] };
  })()`));
}
const { product } = await browser.send("Browser.getVersion");
console.log(JSON.stringify({ chromium: product, opened_ms: opened, sudoku_32_loops: loops }));
"""
PICTURE = """
const page = await browser.page(URL, { width: 1180, height: 900 });
const { writeFileSync } = await import("node:fs");
await page.until(`document.querySelectorAll("#panel-sudoku .card").length === 2`);
await page.until(`Number(document.querySelector("#panel-sudoku .count b").textContent) > 14`); // it plays by itself
await page.evaluate(`(() => {
  const slider = document.querySelector("#panel-sudoku .track input");
  slider.value = 14;
  slider.dispatchEvent(new Event("input"));
})()`);
await new Promise((resolve) => setTimeout(resolve, 1000)); // digits fade in
const { data } = await page.send("Page.captureScreenshot", { format: "png" });
writeFileSync(FILE, Buffer.from(data, "base64"));
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="file to write the result to")
    parser.add_argument("--picture", type=Path, help="file to draw the page to, instead of measuring it")
    arguments = parser.parse_args()
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None or shutil.which("node") is None:
        print("not measured: this needs Chromium and Node")
        return
    with tempfile.TemporaryDirectory() as folder:
        built = build_demo(Path(folder))
        if arguments.picture is not None:
            run(PICTURE, chromium, URL=built.page.as_uri(), FILE=str(arguments.picture))
            return
        measured = run(MEASURE, chromium, URL=built.page.as_uri())
    result = {"page_bytes": built.page_bytes, **json.loads(measured)}
    print(json.dumps(result, indent=1))
    if arguments.out is not None:
        save_text(arguments.out, json.dumps(result, indent=1) + "\n")


def run(script: str, chromium: str, **constants: str) -> str:
    """Run a script in Node with a `browser` and these constants, and return what it prints."""
    constants |= {"DRIVER": DRIVER.as_uri(), "CHROMIUM": chromium}
    lines = [f"const {name} = {json.dumps(value)};" for name, value in constants.items()]
    lines += ["const { Browser } = await import(DRIVER);", "const browser = new Browser(CHROMIUM);", script]
    command = ["node", "--input-type=module", "--eval", "\n".join([*lines, "await browser.close();"])]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


if __name__ == "__main__":
    main()
