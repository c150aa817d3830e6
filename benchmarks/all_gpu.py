"""Run all benchmarks of a GPU that the documentation quotes, in a fixed order and within a limit of time.

    python benchmarks/all_gpu.py [--minutes M] [--only NAME ...] [--tokens TOKENS.npy] [--out FOLDER]

Every benchmark gets its share of the minutes that are left, and is stopped when they are over. Each writes its file
after every row, so what it has measured by then is kept: FOLDER/NAME-gpu-YEAR-MONTH.json, and what it printed in
FOLDER/NAME.log. They run one after the other, because they time the GPU. `float8-text` needs a text as token ids.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from datetime import date
from pathlib import Path

ROOT = Path(__file__).parents[1]
WORK = {
    "early-exit": (2, "benchmarks/early_exit.py --device cuda --precision bfloat16 --batches 512 1"),
    "generation": (2, "benchmarks/generation.py --device cuda --tokens 128"),
    "train-reasoning": (2, "-m looped bench train --preset reasoning"),
    "infer-reasoning": (1, "-m looped bench infer --preset reasoning --batches 512 64"),
    "train-lm": (1.5, "-m looped bench train --preset lm"),
    "scaling-reasoning": (2, "-m looped bench scaling --preset reasoning"),
    "distributed": (1.5, "benchmarks/distributed.py"),
    "engines": (2, "benchmarks/engines.py --jobs 3"),
    "shapes": (2, "benchmarks/shapes.py --minutes 60"),
    "float8-text": (2, "benchmarks/precision.py --steps 100"),
}
"""benchmark -> its share of the time, and its command without the file to write, in the order in which they run"""


def stopped_after(seconds: float, command: list[str], log: Path) -> int | None:
    """Run a command and return its exit code, or None if it had to be stopped with all processes that it started."""
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, cwd=ROOT, start_new_session=True)
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:  # workers of a benchmark would go on without it
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def run_all(names: list[str], minutes: float, tokens: Path | None, out: Path) -> bool:
    """Run the benchmarks and return whether none failed."""
    out.mkdir(parents=True, exist_ok=True)
    deadline, sound = time.monotonic() + 60 * minutes, True
    for place, name in enumerate(names):
        share, command = WORK[name]
        left = deadline - time.monotonic()
        seconds = left * share / sum(WORK[each][0] for each in names[place:])
        inputs = [str(tokens)] if name == "float8-text" else []
        target = out / f"{name}-gpu-{date.today():%Y-%m}.json"
        began, log = time.monotonic(), out / f"{name}.log"
        code = stopped_after(seconds, [sys.executable, *command.split(), *inputs, "--out", str(target)], log)
        ended = {None: "stopped", 0: "done"}.get(code, "FAILED")
        print(f"{name}: {ended} after {time.monotonic() - began:.0f} of {seconds:.0f} s, see {log}", flush=True)
        sound = sound and code in (0, None)
    return sound


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=15.0, help="for all benchmarks together")
    parser.add_argument("--only", nargs="+", choices=WORK, default=list(WORK), metavar="NAME", help=", ".join(WORK))
    parser.add_argument("--tokens", type=Path, help="text for `float8-text`, which is left out without one")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results", help="folder of the results")
    options = parser.parse_args()
    if not options.minutes > 0:
        parser.error(f"--minutes: expected a positive number, got {options.minutes:g}")
    chosen = [name for name in WORK if name in options.only]
    if options.tokens is None and "float8-text" in chosen:
        chosen.remove("float8-text")
        if not chosen:
            parser.error("--only float8-text: expected --tokens TOKENS.npy, got none")
        print("float8-text: left out, it needs --tokens", flush=True)
    tokens = None if options.tokens is None else options.tokens.resolve()
    sys.exit(not run_all(chosen, options.minutes, tokens, options.out.resolve()))
