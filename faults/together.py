"""Several at once: two trainers of one folder, two runners of one experiment, killed owners of locks; and leaks."""

import json
import random
import shutil
import threading
from collections.abc import Iterable
from pathlib import Path

from faults.table import Row
from faults.target import Outcome, Target, last_line
from faults.workloads import Workload, goes_on, paper_run, training, training_arguments, undisturbed

_MIB = 2**20


def concurrency(target: Target, *, full: bool, seed: int, only: str | None = None) -> Iterable[Row]:
    """Start commands at the same time; one gets the work, the other says so or finds it done."""
    with Target(target.source, target.python, target.warm_up) as second:
        yield _pairs(target, second, training(target), "two trainers of one folder", 40 if full else 8, only)
        yield _pairs(target, second, paper_run(target), "two runners of one experiment", 10 if full else 2, only)
    yield _killed_runners(target, 20 if full else 3, seed, only)


def _pairs(target: Target, second: Target, workload: Workload, name: str, number: int, only: str | None) -> Row:
    row = Row(name, "together --only {}")
    reference = undisturbed(target, workload)
    for turn in range(number):
        case = f"{workload.name}@{turn}"
        if only is not None and only != case:
            continue
        with workload.fresh(target) as folder:
            outcomes = _at_once(target, second, workload.command, folder)
            problem = next((each.complaint for each in outcomes if each.complaint), None)
            if problem is None and all(each.code != 0 for each in outcomes):
                problem = f"nobody finished: {last_line(outcomes[0].stderr)}"
            after, _ = goes_on(target, workload, folder, reference)
        ends = " and ".join(str(code) for code in sorted(each.code for each in outcomes))
        row.add(case, problem or after, f"exit codes {ends}")
    return row


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


def _killed_runners(target: Target, number: int, seed: int, only: str | None) -> Row:
    """Kill a runner: its workers must end by themselves, and the lock must be free at once."""
    row = Row("killed runners", "together --only {}")
    workload = paper_run(target)
    reference = undisturbed(target, workload)
    for turn in range(number):
        case = f"killed@{seed}@{turn}"
        if only is not None and only != case:
            continue
        when = random.Random(case).uniform(0.3, 1.0) * reference.elapsed
        with workload.fresh(target) as folder:
            outcome = target.run(workload.command, folder, kill_after=when, kill_alone=True, linger=20)
            problem = "left behind: a worker outlives its runner by 20 s" if outcome.left else None
            after, _ = goes_on(target, workload, folder, reference)
        row.add(case, problem or after, "killed" if outcome.code == -9 else "finished first")
    return row


def leaks(target: Target, *, full: bool, seed: int, only: str | None = None) -> Iterable[Row]:
    """Repeat a command in one process; memory, open files and threads must not grow."""
    folder = target.fresh_folder("leaks")
    target.run(training(target).command, folder)
    jobs = {
        "solve": (["solve", "run", "--json"], 300 if full else 60),
        "train": ([*training_arguments(target), "--out", "run-{}"], 60 if full else 25),
    }
    for name, (command, times) in jobs.items():
        row = Row(f"leaks, {name} repeated", "leaks")
        outcome = target.run(command, folder, repeat=times, seconds=600)
        held = [json.loads(line) for line in outcome.stdout.splitlines()]
        settled = held[times // 3 :]
        problem = outcome.complaint or (None if len(held) == times else "stopped before its end")
        for what, room in (("bytes", 16 * _MIB), ("files", 0), ("threads", 0)):
            grown = settled[-1][what] - settled[0][what] if settled else 0
            if problem is None and grown > room:
                problem = f"{what} grow: by {grown:,} from call {times // 3} to {times}"
            row.notes[f"{what} more at the end"] = grown
        row.add(name, problem)
        row.tries = len(held)
        yield row
    shutil.rmtree(folder)
