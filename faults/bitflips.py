"""Single bits flipped in the files of a run: all bits of the small JSON files, samples of the large ones.

A checkpoint with a flipped bit must be noticed and the one before used, to the same end. A flipped bit in another JSON
file must end in one line and exit code 2.
"""

import os
import random
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from faults.table import Row
from faults.target import Outcome, Target
from faults.workloads import checkpoints, first_step, goes_on, make_killed_run, step_of, training, undisturbed

_BATCH = 50


def flip_bits(target: Target, *, full: bool, seed: int, only: str | None = None) -> Iterable[Row]:
    """Flip bits in the newest checkpoint of a killed run, then in the other JSON files of a finished one."""
    kept = target.scratch / "flipped-run"
    if not kept.exists():
        make_killed_run(target, kept, at_step=17)
    yield from _flip_checkpoint(target, kept, full, seed, only)
    yield from _flip_others(target, full, seed, only)


def _flip_checkpoint(target: Target, kept: Path, full: bool, seed: int, only: str | None) -> Iterator[Row]:
    workload = training(target)
    reference = undisturbed(target, workload)
    newest, before = checkpoints(kept)[-1], step_of(checkpoints(kept)[-2])
    for path in sorted(newest.iterdir()):
        small = path.suffix == ".json"
        row = Row(f"bit flips, {path.name} of the newest checkpoint", "bits --only {}")
        for bit in _bits(path, full, seed, small, only):
            with workload.fresh(target) as folder:
                shutil.copytree(kept, folder / "run")
                _flip(folder / "run" / path.relative_to(kept), bit)
                problem, outcome = goes_on(target, workload, folder, reference)
            went_on = first_step(outcome)
            if problem is None and went_on != before:
                problem = f"not noticed: the run went on from step {went_on}, and not from {before}"
            row.add(f"{path.name}@{bit}", problem and f"{problem} ({_context(path, bit)})")
        if row.tries:
            yield row


def _flip_others(target: Target, full: bool, seed: int, only: str | None) -> Iterator[Row]:
    """Flip bits of a finished run's own JSON files: what solves or trains must refuse them."""
    workload = training(target)
    with workload.fresh(target) as folder:
        target.run(workload.command, folder)
        run = folder / "run"
        for path in sorted(run.glob("*.json")):
            row = Row(f"bit flips, {path.name}", "bits --only {}")
            bits = list(_bits(path, full, seed, True, only))
            for start in range(0, len(bits), _BATCH):
                some = bits[start : start + _BATCH]
                for bit, outcome in zip(some, _try_bits(target, workload.command, run, path, some), strict=True):
                    problem = outcome.complaint or (
                        None if outcome.code == 2 else f"not noticed: exit code {outcome.code}"
                    )
                    row.add(f"{path.name}@{bit}", problem and f"{problem} ({_context(path, bit)})")
            if row.tries:
                yield row


def _try_bits(target: Target, command: list[str], run: Path, path: Path, bits: list[int]) -> list[Outcome]:
    """Flip each bit in a copy of the run, and solve with it, or, where that does not read the file, train it."""
    here = target.fresh_folder("flips")
    commands = []
    for bit in bits:
        copy = here / f"run-{bit}"
        shutil.copytree(run, copy, copy_function=os.link)
        flipped = copy / path.name
        flipped.unlink()
        shutil.copy(path, flipped)
        _flip(flipped, bit)
        trained = [*command[:-1], copy.name]
        commands.append(["solve", copy.name, "--json"] if path.name == "config.json" else trained)
    outcomes = target.run_many(commands, here)
    shutil.rmtree(here)
    return outcomes


def _bits(path: Path, full: bool, seed: int, small: bool, only: str | None) -> list[int]:
    """Return which bits of a file to flip; in a sample, always those of the step's digits."""
    if only is not None:
        name, _, bit = only.partition("@")
        return [int(bit)] if name == path.name else []
    data = path.read_bytes()
    number = 8 * len(data)
    if small and full:
        return list(range(number))
    draws = random.Random(f"{seed} {path.name}")
    digits = {
        8 * place + bit
        for found in re.finditer(rb'"(?:step|seconds)": ([\d.]+)', data)
        for place in range(found.start(1), found.end(1))
        for bit in range(8)
    }
    count = (2000 if full else 60) if not small else 250
    return sorted(digits | set(draws.sample(range(number), min(count, number))))


def _flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def _context(path: Path, bit: int) -> str:
    """Return the flipped byte with what is around it."""
    data = path.read_bytes()
    place = bit // 8
    before, after = data[max(0, place - 12) : place], data[place + 1 : place + 6]
    return f"{before + data[place : place + 1] + after!r} with {bytes([data[place] ^ 1 << bit % 8])!r} at byte {place}"
