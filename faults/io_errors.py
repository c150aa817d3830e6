"""A disk that is full, that fails, or that takes only half of what it is given, at every file operation.

The command must end with one line that names a file, or come to its right end; given again, it must go on.
"""

import errno
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from faults.kills import distinct, worst
from faults.operations import Fault, Operation
from faults.target import Outcome, Target
from faults.tries import Result, Tries, one, result
from faults.workloads import (
    WORKLOADS,
    Undisturbed,
    Workload,
    checkpoints,
    files_in,
    first_step,
    goes_on,
    step_of,
    torn,
    undisturbed,
)

_TAKES_SPACE = ("open", "write", "sync", "mkdir", "rename", "link", "symlink")
_SAMPLE = {"train": 70, "resume": 50, "data": 25, "paper": 25}


def fail_at_operations(target: Target, *, full: bool, seed: int) -> Iterator[Tries]:
    """Break each operation of each workload in every way; in a sample, one of each kind in some ways."""
    for name, make in WORKLOADS.items():
        workload = make(target)
        operations = undisturbed(target, workload, reads=True).operations
        ways = list(_ways(operations if full else distinct(operations)))
        if not full:
            ways = random.Random(seed).sample(ways, min(_SAMPLE[name], len(ways)))
        for way in ways:
            case = f"{name}@{way.operation.number}@{way.how.replace(' ', '-')}"
            fail = partial(_fail, target, workload, way)
            yield one(f"disk full, failing or short at each operation, {name}", case, fail)


class Way(NamedTuple):
    """An operation, and a way in which it fails."""

    operation: Operation
    fault: Fault
    how: str


def _fail(target: Target, workload: Workload, way: Way) -> Result:
    reference = undisturbed(target, workload, reads=True)
    with workload.fresh(target) as folder:
        outcome = target.run(workload.command, folder, fault=way.fault)
        problem = outcome.complaint or _unnamed(outcome, folder, reference) or torn(folder, reference)
        saved = [step_of(path) for path in checkpoints(folder)]
        after, again = goes_on(target, workload, folder, reference)
        went_on = first_step(again)
        if saved and went_on is not None and went_on < max(saved):
            problem = problem or f"work lost: step {max(saved)} was saved, but the run went on from {went_on}"
    problem = worst(problem, after)
    return result(problem and f"{problem} ({way.how}: {way.operation})", f"exit code {outcome.code}")


def _ways(operations: list[Operation]) -> Iterator[Way]:
    """Yield each operation with each way in which it can fail."""
    for operation in operations:
        number = operation.number
        for word, code in (("ENOSPC", errno.ENOSPC), ("EIO", errno.EIO)):
            if word == "EIO" or operation.kind in _TAKES_SPACE:
                yield Way(operation, Fault(number, "fail once", code, reads=True), f"{word} once")
                yield Way(operation, Fault(number, "fail from there on", code, reads=True), f"{word} from there on")
        if operation.kind == "write":
            yield Way(operation, Fault(number, "short write", reads=True), "short write")
            full = Fault(number, "short write, then fail", errno.ENOSPC, reads=True)
            yield Way(operation, full, "short write then ENOSPC")


def _unnamed(outcome: Outcome, folder: Path, reference: Undisturbed) -> str | None:
    """Return a complaint about a line that does not say which file it is about."""
    parts = {folder.name} | {part for name in reference.files | files_in(folder) for part in Path(name).parts}
    if outcome.code == 2 and not any(part in outcome.errors[-1] for part in parts):
        return f"no path in the message: {outcome.errors[-1]}"
    return None
