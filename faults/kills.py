"""SIGKILL before, after and in the middle of every file operation, and at random times.

The same command must then go on to the same weights, log and files as an undisturbed run.
"""

import random
import re
from collections.abc import Iterable

from faults.operations import Fault, Operation
from faults.table import Row
from faults.target import Target
from faults.workloads import WORKLOADS, goes_on, torn, undisturbed


def kill_at_operations(target: Target, *, full: bool, seed: int, only: str | None = None) -> Iterable[Row]:
    """Kill every workload at each of its operations; in a sample, at one of each kind."""
    for name, make in WORKLOADS.items():
        workload = make(target)
        row = Row(f"kill at each operation, {name}", "kill --only {}")
        if only is not None and only.split("@")[0] != name:
            continue
        reference = undisturbed(target, workload)
        chosen = reference.operations if full else distinct(reference.operations)
        if not full and name == "paper":
            chosen = random.Random(seed).sample(chosen, min(6, len(chosen)))
        for operation in chosen:
            for action in ("kill before", "kill midway" if operation.kind == "write" else "kill after"):
                case = f"{name}@{operation.number}@{action.replace(' ', '-')}"
                if only is not None and only != case:
                    continue
                with workload.fresh(target) as folder:
                    outcome = target.run(workload.command, folder, fault=Fault(operation.number, action))
                    problem = torn(folder, reference)
                    after, _ = goes_on(target, workload, folder, reference)
                problem = worst(problem, after)
                told = problem and f"{problem} ({action}: {operation})"
                row.add(case, told, "reached" if outcome.hit else "not reached")
        yield row


def kill_at_random(target: Target, *, full: bool, seed: int, only: str | None = None) -> Iterable[Row]:
    """Kill the training and the data build at random times, several times each, and let them finish."""
    draws = random.Random(seed)
    for name, kills in (("train", 300 if full else 40), ("data", 60 if full else 10)):
        workload = WORKLOADS[name](target)
        row = Row(f"kill at random times, {name}", "random-kill --only {}")
        reference = undisturbed(target, workload)
        done = 0
        while done < kills:
            case = f"{name}@{draws.randrange(10**9)}"
            times = random.Random(case if only is None else only)
            problem = None
            with workload.fresh(target) as folder:
                for _ in range(times.randint(1, 6)):
                    outcome = target.run(workload.command, folder, kill_after=times.uniform(0, reference.elapsed))
                    done += outcome.code == -9
                    problem = problem or torn(folder, reference)
                after, _ = goes_on(target, workload, folder, reference)
            row.add(case, worst(problem, after))
            if only is not None:
                break
        row.notes["kills"] = done
        yield row


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
