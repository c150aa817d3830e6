"""Single bits flipped in the files of a run: all bits of the small JSON files, samples of the large ones.

A checkpoint with a flipped bit must be noticed and the one before used, to the same end. A flipped bit in another JSON
file must end in one line and exit code 2; in the log, `looped check` finds it.
"""

import os
import random
import re
import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from faults.target import Outcome, Target
from faults.tries import Result, Tries, one
from faults.workloads import (
    checkpoints,
    first_step,
    goes_on,
    make_killed_run,
    paper_run,
    step_of,
    training,
    undisturbed,
)

_BATCH = 200
_TRAINED = 60
"""bits per file of a checkpoint with which the run is trained to its end; the others are only read"""


def flip_bits(target: Target, *, full: bool, seed: int) -> Iterator[Tries]:
    """Flip bits in the newest checkpoint of a killed run, then in the other files of a finished one."""
    killed, finished = (target.fresh_folder(name) / "run" for name in ("flipped", "finished"))
    make_killed_run(target, killed, at_step=17)
    target.run(training(target).command, finished.parent)
    target.run(paper_run(target).command, finished.parent)
    record = sorted((finished.parent / "runs").glob("*/record.json"))[0]
    shutil.copy(record, finished)
    for path in sorted(checkpoints(killed)[-1].iterdir()):
        row, bits = f"bit flips, {path.name} of the newest checkpoint", _bits(path, full, seed)
        for bit in random.Random(seed).sample(bits, min(len(bits), _TRAINED)):
            go_on = partial(_go_on, target, killed, path, bit)
            yield one(f"{row}, trained on", f"trained@{path.name}@{bit}", go_on)
        for cases in _batches(path, bits):
            yield Tries(f"{row}, read", cases, partial(_read, target, killed, path))
    for path in sorted(finished.glob("*.json*")):
        for cases in _batches(path, _bits(path, full, seed)):
            yield Tries(f"bit flips, {path.name}", cases, partial(_refuse, target, finished, path))


def _batches(path: Path, bits: list[int]) -> Iterator[list[str]]:
    for start in range(0, len(bits), _BATCH):
        yield [f"{path.name}@{bit}" for bit in bits[start : start + _BATCH]]


def _go_on(target: Target, killed: Path, path: Path, bit: int) -> Result:
    """Train a killed run to its end with a flipped bit in its newest checkpoint."""
    workload, before = training(target), step_of(checkpoints(killed)[-2])
    with workload.fresh(target) as folder:
        shutil.copytree(killed, folder / "run")
        _flip(folder / "run" / path.relative_to(killed), bit)
        problem, outcome = goes_on(target, workload, folder, undisturbed(target, workload))
    went_on = first_step(outcome)
    if problem is None and went_on != before:
        problem = f"not noticed: the run went on from step {went_on}, and not from {before}"
    return Result(problem and f"{problem} ({_context(path, bit)})")


def _read(target: Target, killed: Path, path: Path, cases: Sequence[str]) -> list[Result]:
    """Solve with a killed run whose newest checkpoint has a flipped bit: the one before must be used."""
    before = step_of(checkpoints(killed)[-2])
    found = []
    for case, outcome in zip(cases, _try_bits(target, ["solve", "{}", "--json"], killed, path, cases), strict=True):
        problem = outcome.complaint
        if problem is None and (outcome.code != 0 or f"using step {before} instead" not in outcome.stderr):
            problem = f"not noticed: exit code {outcome.code}"
        found.append(Result(problem and f"{problem} ({_context(path, _bit(case))})"))
    return found


def _refuse(target: Target, finished: Path, path: Path, cases: Sequence[str]) -> list[Result]:
    """Give a command that reads a run's file with a flipped bit: it must be refused."""
    train = [*training(target).command[:-1], "{}"]
    readers = {"config.json": ["solve", "{}", "--json"], "result.json": train}
    command = readers.get(path.name, ["check", f"{{}}/{path.name}" if path.name == "record.json" else "{}"])
    found = []
    for case, outcome in zip(cases, _try_bits(target, command, finished, path, cases), strict=True):
        problem = outcome.complaint or (None if outcome.code == 2 else f"not noticed: exit code {outcome.code}")
        found.append(Result(problem and f"{problem} ({_context(path, _bit(case))})"))
    return found


def _try_bits(target: Target, command: list[str], run: Path, path: Path, cases: Sequence[str]) -> list[Outcome]:
    """Flip each bit in a copy of the run, and give a command in which {} stands for the copy."""
    here = target.fresh_folder("flips")
    names = [f"run-{_bit(case)}" for case in cases]
    for case, name in zip(cases, names, strict=True):
        shutil.copytree(run, here / name, copy_function=os.link)
        flipped = here / name / path.relative_to(run)
        flipped.unlink()
        shutil.copy(path, flipped)
        _flip(flipped, _bit(case))
    outcomes = target.run_many([[part.replace("{}", name) for part in command] for name in names], here)
    shutil.rmtree(here)
    return outcomes


def _bit(case: str) -> int:
    return int(case.rpartition("@")[2])


def _bits(path: Path, full: bool, seed: int) -> list[int]:
    """Return which bits of a file to flip; in a sample, always those of the step's digits."""
    data = path.read_bytes()
    number = 8 * len(data)
    small = path.suffix in (".json", ".jsonl")
    if small and full:
        return list(range(number))
    draws = random.Random(f"{seed} {path.name}")
    digits = {
        8 * place + bit
        for found in re.finditer(rb'"(?:step|seconds)": ([\d.]+)', data)
        for place in range(found.start(1), found.end(1))
        for bit in range(8)
    }
    return sorted(digits | set(draws.sample(range(number), min(2000 if full else 250, number))))


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
