"""Several at once: two trainers of one folder, two runners of one experiment, killed owners of locks; and leaks."""

import json
import random
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from faults.operations import Fault
from faults.target import Outcome, Target, last_line
from faults.tries import Result, Tries, one, result
from faults.workloads import Workload, goes_on, paper_run, training, training_arguments, undisturbed

_MIB = 2**20


def concurrency(target: Target, *, full: bool, seed: int) -> Iterator[Tries]:
    """Start commands at the same time; one gets the work, the other says so or finds it done."""
    second = target.companion()
    pairs = (
        ("two trainers of one folder", training(target), 40 if full else 8),
        ("two runners of one experiment", paper_run(target), 10 if full else 2),
    )
    for row, workload, number in pairs:
        for turn in range(number):
            yield one(row, f"{workload.name}@{turn}", partial(_pair, target, second, workload))
    for turn in range(20 if full else 3):
        case = f"killed@{seed}@{turn}"
        yield one("killed runners", case, partial(_kill_runner, target, random.Random(case)))


def _pair(target: Target, second: Target, workload: Workload) -> Result:
    with workload.fresh(target) as folder:
        outcomes = _at_once(target, second, workload.command, folder)
        problem = next((each.complaint for each in outcomes if each.complaint), None)
        if problem is None and all(each.code != 0 for each in outcomes):
            problem = f"nobody finished: {last_line(outcomes[0].stderr)}"
        after, _ = goes_on(target, workload, folder, undisturbed(target, workload))
    ends = " and ".join(str(code) for code in sorted(each.code for each in outcomes))
    return result(problem or after, f"exit codes {ends}")


def _at_once(target: Target, second: Target, command: list[str], folder: Path) -> list[Outcome]:
    outcomes: list[Outcome] = []
    threads = [
        threading.Thread(target=lambda each=each: outcomes.append(each.run(command, folder, seconds=240)))
        for each in (target, second)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def _kill_runner(target: Target, draws: random.Random) -> Result:
    """Kill a runner while its worker writes: the worker must end by itself, and the lock must be free at once."""
    workload = paper_run(target)
    reference = undisturbed(target, workload)
    number = draws.randrange(1, len(reference.operations) * 9 // 10)
    with workload.fresh(target) as folder:
        outcome = target.run(workload.command, folder, fault=Fault(), kill_at=number, kill_alone=True, linger=20)
        problem = "left behind: a worker outlives its runner by 20 s" if outcome.left else None
        after, _ = goes_on(target, workload, folder, reference)
    return result(problem or after, "killed" if outcome.code == -9 else "finished first")


def leaks(target: Target, *, full: bool, seed: int) -> Iterator[Tries]:
    """Repeat a command in one process; memory, open files and threads must not grow."""
    folder = target.fresh_folder("leaks")
    target.run(training(target).command, folder)
    solve, train = ["solve", "run", "--json"], [*training_arguments(target), "--out", "run-{}"]
    for name, command, times in (("solve", solve, 300 if full else 60), ("train", train, 60 if full else 25)):
        yield one(f"leaks, {name} {times} times", name, partial(_repeat, target, folder, command, times))


def _repeat(target: Target, folder: Path, command: list[str], times: int) -> Result:
    outcome = target.run(command, folder, repeat=times, seconds=600)
    held = [json.loads(line) for line in outcome.stdout.splitlines()]
    settled = held[times // 3 :]
    problem = outcome.complaint or (None if len(held) == times else "stopped before its end")
    notes = {}
    for what, room in (("bytes", 16 * _MIB), ("files", 0), ("threads", 0)):
        grown = settled[-1][what] - settled[0][what] if settled else 0
        if problem is None and grown > room:
            problem = f"{what} grow: by {grown:,} from call {times // 3} to {times}"
        notes[f"{what} more at the end"] = grown
    return Result(problem, notes)
