"""`python -m faults`: break the program under test and print the table of what it did not survive."""

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path

from faults import bitflips, command_lines, hostile, io_errors, kills, mutations, numbers, power, together
from faults.table import Row, markdown
from faults.target import Target
from faults.workloads import training_arguments

CLASSES: dict[str, Callable[..., Iterable[Row]]] = {
    "kill": kills.kill_at_operations,
    "random-kill": kills.kill_at_random,
    "disk": io_errors.fail_at_operations,
    "power": power.cut_power,
    "bits": bitflips.flip_bits,
    "hostile": hostile.hostile_runs,
    "hostile-data": hostile.hostile_data,
    "nan": numbers.non_finite,
    "loops": numbers.thousand_loops,
    "mutations": mutations.mutate,
    "commands": command_lines.fuzz,
    "together": together.concurrency,
    "leaks": together.leaks,
}


def main() -> int:
    """Run the chosen fault classes; the exit code is 1 where anything failed."""
    parser = argparse.ArgumentParser(prog="python -m faults", description=__doc__)
    parser.add_argument("classes", nargs="*", metavar="CLASS", help=f"which faults, of {', '.join(CLASSES)} (all)")
    parser.add_argument("--full", action="store_true", help="every fault instead of a seeded sample; takes hours")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample")
    parser.add_argument("--jobs", type=int, default=1, help="fault classes at a time")
    parser.add_argument("--only", help="one try, as a table names it")
    parser.add_argument("--source", type=Path, default=Path(), help="source tree of the program under test")
    parser.add_argument("--out", type=Path, help="file that also gets the table")
    options = parser.parse_args()
    chosen = options.classes or list(CLASSES)
    for name in chosen:
        if name not in CLASSES:
            parser.error(f"unknown class {name!r}: expected one of {', '.join(CLASSES)}")
    rows: dict[str, list[Row]] = {name: [] for name in chosen}
    with Target(options.source) as target:
        title = f"commit {target.commit}, {date.today()}, {'all faults' if options.full else f'seed {options.seed}'}"

    def table() -> str:
        return f"# Faults: {title}\n\n{markdown(row for name in chosen for row in rows[name])}"

    def carry_out(name: str) -> None:
        started = time.monotonic()
        with Target(options.source) as target:
            target.warm_up.append([*training_arguments(target), "--out", "warm-up"])
            for row in CLASSES[name](target, full=options.full, seed=options.seed, only=options.only):
                rows[name].append(row)
                seconds = time.monotonic() - started
                print(
                    f"[{seconds:5.0f} s] {row.name}: {row.tries} tries, {len(row.failures)} failures", file=sys.stderr
                )
                if options.out is not None:
                    options.out.write_text(table())

    with ThreadPoolExecutor(options.jobs) as pool:  # the work is done by the targets' own processes
        for job in [pool.submit(carry_out, name) for name in chosen]:
            job.result()
    print(table(), end="")
    return int(any(row.failures for some in rows.values() for row in some))


if __name__ == "__main__":
    sys.exit(main())
