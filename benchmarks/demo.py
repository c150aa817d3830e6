"""Measure the demo's page in headless Chromium: how long it takes to open from disk, and how long a loop takes.

`python benchmarks/demo.py` prints one JSON object; `--out FILE` keeps it. Chromium and Node must be installed.
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
SCRIPT = """
const { Browser } = await import(DRIVER);
const browser = new Browser(CHROMIUM);
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
await browser.close();
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="file to write the result to")
    arguments = parser.parse_args()
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None or shutil.which("node") is None:
        print("not measured: this needs Chromium and Node")
        return
    with tempfile.TemporaryDirectory() as folder:
        built = build_demo(Path(folder))
        places = {"DRIVER": DRIVER.as_uri(), "CHROMIUM": chromium, "URL": built.page.as_uri()}
        constants = "".join(f"const {name} = {json.dumps(value)};\n" for name, value in places.items())
        command = ["node", "--input-type=module", "--eval", constants + SCRIPT]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    result = {"page_bytes": built.page_bytes, **json.loads(done.stdout)}
    print(json.dumps(result, indent=1))
    if arguments.out is not None:
        save_text(arguments.out, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
