"""SIGKILL before, after and in the middle of every file operation, and at random times.

The same command must then go on to the same weights, log and files as an undisturbed run.
"""

import random
import re
from collections.abc import Iterator
from functools import partial

from faults.operations import Fault, Operation
from faults.target import Target
from faults.tries import Result, Tries, one, result
from faults.workloads import WORKLOADS, Workload, goes_on, torn, undisturbed


def kill_at_operations(target: Target, *, full: bool, seed: int) -> Iterator[Tries]:
    """Kill every workload at each of its operations; in a sample, at one of each kind."""
    for name, make in WORKLOADS.items():
        workload = make(target)
        operations = undisturbed(target, workload).operations
        for operation in operations if full else distinct(operations):
            for action in ("kill before", "kill midway" if operation.kind == "write" else "kill after"):
                case = f"{name}@{operation.number}@{action.replace(' ', '-')}"
                kill = partial(_kill, target, workload, operation, action)
                yield one(f"kill at each operation, {name}", case, kill)


def _kill(target: Target, workload: Workload, operation: Operation, action: str) -> Result:
    reference = undisturbed(target, workload)
    with workload.fresh(target) as folder:
        outcome = target.run(workload.command, folder, fault=Fault(operation.number, action))
        problem = torn(folder, reference)
        after, _ = goes_on(target, workload, folder, reference)
    problem = worst(problem, after)
    return result(problem and f"{problem} ({action}: {operation})", "reached" if outcome.hit else "not reached")


_CHAINS = {"train": (150, 14), "data": (30, 4), "paper": (40, 4)}  # of all faults, of a sample
_MOST_KILLS = 6


def kill_at_random(target: Target, *, full: bool, seed: int) -> Iterator[Tries]:
    """Kill a command at random times, up to six times in a row, and let it finish."""
    for name, (all_chains, some) in _CHAINS.items():
        workload = WORKLOADS[name](target)
        for number in range(all_chains if full else some):
            case = f"{name}@{seed}@{number}"
            kill = partial(_kill_at_random, target, workload, random.Random(case))
            yield one(f"kill at random times, {name}", case, kill)


def _kill_at_random(target: Target, workload: Workload, draws: random.Random) -> Result:
    reference = undisturbed(target, workload)
    kills, problem = 0, None
    with workload.fresh(target) as folder:
        for _ in range(draws.randint(1, _MOST_KILLS)):
            outcome = target.run(workload.command, folder, kill_after=draws.uniform(0, reference.elapsed))
            kills += outcome.code == -9
            problem = problem or torn(folder, reference)
        after, _ = goes_on(target, workload, folder, reference)
    return Result(worst(problem, after), {"kills": kills})


def worst(seen: str | None, after: str | None) -> str | None:
    """Return the worse of two problems: a command that cannot go on, what was seen on the way, litter."""
    return after if after and not after.startswith("litter") else seen or after


def distinct(operations: list[Operation]) -> list[Operation]:
    """Return the first operation of each kind on each path, with the numbers in paths left out."""
    found: dict[tuple[str, str], Operation] = {}
    for operation in operations:
        name = re.sub(r"[0-9a-f]{16}|\d+", "0", f"{operation.path}>{operation.other}")
        found.setdefault((operation.kind, name), operation)
    return list(found.values())
