"""Seeded mutations of all that is read from files: configs, records, checkpoints, data, puzzles, texts, weights.

Whatever a file holds, a command ends with exit code 0, or with exit code 2 and one line; never with a traceback.
"""

import copy
import gzip
import json
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from faults.seals import reseal, sealed
from faults.target import Outcome, Target, last_line
from faults.tries import Result, Tries, result
from faults.workloads import checkpoints, training

_BATCH = 200
_COLD = 500
"""one of so many cases is also given to a process of its own, which has to end alike"""
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 7, 2**31, 2**63, -(2**63), 10**400, 0.5, -0.0, 1e308, 5e-324, float("nan"),
    float("inf"), "", "a", "\ud800", "\0", "..", "/dev/null", "é" * 300, [], [[]], {}, {"name": 1}, [0] * 40, "1",
)  # fmt: skip

_TASKS = {
    "edit-distance": ["--task.length", "6"], "lcs": ["--task.length", "6"], "sudoku": ["--task.side", "4"],
    "countdown": [], "decision-tree": ["--task.dims", "2", "--task.points", "3"],
}  # fmt: skip

Make = Callable[[Path, random.Random], list[str]]
"""writes a mutated file into a folder and returns the command that reads it"""


def mutate(target: Target, *, full: bool, seed: int) -> Iterator[Tries]:
    """Mutate every kind of file many times."""
    shares = {
        "config": 0.25, "record": 0.15, "checkpoint state": 0.1, "safetensors header": 0.1, "data set": 0.1,
        "puzzle file": 0.1, "own examples": 0.1, "text": 0.02, "shipped weights": 0.08,
    }  # fmt: skip
    makers = _makers(target)
    for name, share in shares.items():
        cases = [f"{name}@{seed}@{number}" for number in range(round((100_000 if full else 3_000) * share))]
        for start in range(0, len(cases), _BATCH):
            give = partial(_give, target, makers[name])
            yield Tries(f"mutated {name}", cases[start : start + _BATCH], give)


def _give(target: Target, make: Make, cases: Sequence[str]) -> list[Result]:
    """Make the mutated files of some cases and give the commands that read them."""
    folder = target.fresh_folder("mutations")
    commands = []
    for number, case in enumerate(cases):
        here = folder / str(number)
        here.mkdir()
        commands.append([part.replace("HERE", str(number)) for part in make(here, random.Random(case))])
    environment = {"LOOPED_WEIGHTS": str(folder)}
    outcomes = target.run_many(commands, folder, environment=environment)
    problems = [outcome.complaint for outcome in outcomes]
    for place, case in enumerate(cases):
        if int(case.rpartition("@")[2]) % _COLD == 0:
            alone = target.run_cold(commands[place], folder, environment=environment)
            problems[place] = problems[place] or alone.complaint or _unlike(alone, outcomes[place])
    shutil.rmtree(folder)
    return [result(*pair) for pair in zip(problems, (f"exit code {each.code}" for each in outcomes), strict=True)]


def _unlike(alone: Outcome, outcome: Outcome) -> str | None:
    """Return how a process of its own ended otherwise than a command among others; None for alike."""
    ends = [(each.code, each.errors) for each in (alone, outcome)]
    return None if ends[0] == ends[1] else f"another end alone: {ends[0]}, and not {ends[1]}"


def _makers(target: Target) -> dict[str, Make]:
    """Return what makes each kind of file, from good ones that the program has written."""
    base = target.scratch / "good"
    if not base.exists():
        base.mkdir()
        _run(target, [*training(target).command], base)
        for task, settings in _TASKS.items():
            _run(target, ["data", "build", task, *settings, "--size", "4", "--out", f"{task}.jsonl"], base)
        _write_puzzles(base)
        paper = ["paper", "run", "table1", "--scale", "smoke", "--cells", "ED40:looped r=1", "--workers", "1"]
        _run(target, [*paper, "--root", "runs", "--results", "none"], base)
    run, (record,) = base / "run", [*(base / "runs").glob("*/record*.json")]
    shipped = sorted(target.source.rglob("weights/*/*.safetensors"), key=lambda path: path.stat().st_size)
    return {
        "config": lambda here, draws: _in_run(here, run, "config.json", draws),
        "record": lambda here, draws: _record(here, record, draws),
        "checkpoint state": lambda here, draws: _in_checkpoint(here, run, draws, header=False),
        "safetensors header": lambda here, draws: _in_checkpoint(here, run, draws, header=True),
        "data set": lambda here, draws: _data(here, base, draws),
        "puzzle file": lambda here, draws: _puzzles(here, base, draws),
        "own examples": lambda here, draws: _examples(here, base, draws),
        "text": _text,
        "shipped weights": lambda here, draws: _weights(here, shipped[0], draws),
    }


def _run(target: Target, command: list[str], folder: Path) -> None:
    outcome = target.run(command, folder)
    if outcome.code != 0:
        raise RuntimeError(f"{' '.join(command)} failed: {last_line(outcome.stderr)}")


def _write_puzzles(base: Path) -> None:
    """Write a puzzle file out of the data set's examples, whatever its fields are called."""
    rows = []
    for line in (base / "sudoku.jsonl").read_text().splitlines()[1:]:
        boards = [value for value in json.loads(line).values() if isinstance(value, str) and len(value) == 16]
        rows.append(",".join(boards[:2]))
    (base / "p.csv").write_text("puzzle,solution\n" + "".join(f"{row}\n" for row in rows))


def _in_run(here: Path, run: Path, name: str, draws: random.Random) -> list[str]:
    shutil.copytree(run, here / "run")
    (here / "run" / name).write_bytes(sealed(mutated((run / name).read_bytes(), draws, json_like=True)))
    return ["solve", "HERE/run", "--json"]


def _record(here: Path, record: Path, draws: random.Random) -> list[str]:
    (here / "record.json").write_bytes(sealed(mutated(record.read_bytes(), draws, json_like=True)))
    verb = "report" if draws.random() < 0.05 else "status"
    command = ["paper", verb, "table1", "--scale", "smoke", "--root", "HERE/none", "--results", "HERE"]
    return command if verb == "status" else [*command, "--out", "HERE/page"]


def _in_checkpoint(here: Path, run: Path, draws: random.Random, *, header: bool) -> list[str]:
    shutil.copytree(run, here / "run")
    for checkpoint in checkpoints(here / "run"):
        (state,) = checkpoint.glob("*.json")
        tensors = sorted(checkpoint.glob("*.safetensors"))[0]
        if header:
            reseal(checkpoint, {tensors.name: _with_header(tensors.read_bytes(), draws)})
        else:
            state.write_bytes(sealed(mutated(state.read_bytes(), draws, json_like=True)))
    return ["solve", "HERE/run", "--json"]


def _with_header(data: bytes, draws: random.Random) -> bytes:
    """Return a safetensors file with another header, or another length of it."""
    size = int.from_bytes(data[:8], "little")
    header = mutated(data[8 : 8 + size], draws, json_like=True)
    stated = draws.choice((len(header), len(header), len(header), 0, size, 2**63, 2**64 - 1, len(data)))
    return stated.to_bytes(8, "little") + header + data[8 + size :]


def _data(here: Path, base: Path, draws: random.Random) -> list[str]:
    lines = (base / draws.choice(("edit-distance.jsonl", "sudoku.jsonl"))).read_bytes().splitlines(keepends=True)
    place = draws.randrange(len(lines))
    lines[place] = mutated(lines[place], draws, json_like=True)
    (here / "d.jsonl").write_bytes(b"".join(lines))
    return ["data", "check", "HERE/d.jsonl"]


def _puzzles(here: Path, base: Path, draws: random.Random) -> list[str]:
    (here / "p.csv").write_bytes(mutated((base / "p.csv").read_bytes(), draws, json_like=False))
    flags = ["--task.side", "4", "--task.file", "HERE/p.csv", "--size", "1"]
    return ["data", "sample", "sudoku", *flags]


def _examples(here: Path, base: Path, draws: random.Random) -> list[str]:
    """Write examples of a task as JSON lines or as CSV, one of them mutated, and sample from them."""
    task = draws.choice(sorted(_TASKS))
    header, *lines = (base / f"{task}.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    if draws.random() < 0.4:
        cells = [list(rows[0]), *([json.dumps(value) for value in row.values()] for row in rows)]
        lines, name = [",".join('"' + cell.replace('"', '""') + '"' for cell in row) for row in cells], "own.csv"
    else:
        lines, name = [*[header] * draws.randrange(2), *lines], "own.jsonl"
    place = draws.randrange(len(lines))
    data = [line.encode() for line in lines]
    data[place] = mutated(data[place], draws, json_like=name == "own.jsonl")
    whole = b"\n".join(data) + b"\n"
    if draws.random() < 0.1:
        whole, name = mutated(gzip.compress(whole), draws, json_like=False), f"{name}.gz"
    (here / name).write_bytes(whole)
    role = ["--task.file-role", draws.choice(("split", "test"))]
    return [
        "data",
        "sample",
        task,
        *_TASKS[task],
        "--task.file",
        f"HERE/{name}",
        "--size",
        "1",
        "--split",
        "test",
        *role,
    ]


def _text(here: Path, draws: random.Random) -> list[str]:
    text = "One day a fox saw a lake.\nIt was blue.\n\x1e\n" * draws.randrange(1, 40)
    name = draws.choice(("t.txt", "t.raw", "t.txt.zst", "t.parquet"))
    (here / name).write_bytes(mutated(text.encode(), draws, json_like=False))
    return ["data", "sample", "language", "--task.text", f"HERE/{name}", "--task.seq-len", "8", "--size", "1"]


def _weights(here: Path, shipped: Path, draws: random.Random) -> list[str]:
    """Write a shipped model under another name: the folder's number is the task, so the name has to be a real task."""
    folder = here.parent / shipped.parent.name
    folder.mkdir(exist_ok=True)
    (folder / f"m{here.name}.safetensors").write_bytes(_with_header(shipped.read_bytes(), draws))
    return ["solve", f"{shipped.parent.name}/m{here.name}", "--json"]


def mutated(data: bytes, draws: random.Random, *, json_like: bool) -> bytes:
    """Return other bytes: JSON with another value somewhere, or bytes cut, doubled, flipped or put in."""
    for _ in range(draws.choice((1, 1, 1, 2, 3))):
        if json_like and draws.random() < 0.85:
            try:
                data = _mutated_json(data, draws)
                continue
            except (ValueError, RecursionError):
                pass
        data = _mutated_bytes(data, draws)
    return data


def _mutated_json(data: bytes, draws: random.Random) -> bytes:
    value = json.loads(data)
    places = list(_places(value))
    if not places:
        return json.dumps(draws.choice(_VALUES)).encode()
    holder, key = draws.choice(places)
    other_holder, other_key = draws.choice(places)
    way = draws.randrange(8)
    if way <= 3:
        holder[key] = copy.deepcopy(draws.choice(_VALUES))
    elif way == 4:
        del holder[key]
    elif way == 5 and isinstance(holder, dict):
        holder[draws.choice(("", "name", "step", "x" * 40, key + "s"))] = holder.pop(key)
    elif way == 6:
        holder[key] = copy.deepcopy(other_holder[other_key])
    else:
        # Python turns no more than 4,300 digits into a number by itself.
        number = draws.choice((-1, 0, 0.5, 10**400, -(10**400), float("nan"), float("inf"), 1e308, "@digits"))
        numbers = [place for place in places if isinstance(place[0][place[1]], int | float)]
        holder, key = draws.choice(numbers or places)
        holder[key] = number
    return json.dumps(value).replace('"@digits"', "9" * 5000).encode()


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every holder in a JSON value with each of its keys."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in list(pairs):
        yield value, key
        yield from _places(each)


def _mutated_bytes(data: bytes, draws: random.Random) -> bytes:
    start = draws.randrange(len(data) + 1)
    end = min(len(data), start + draws.choice((0, 1, 2, 5, 50)))
    put = draws.choice((
        b"", b"\0", b"\xff", b"\r\n", b"\xef\xbb\xbf", b'"', b",", b"{", b"9" * 30, "é".encode(), b"\x1f\x8b",
        b"(\xb5/\xfd", data[start:end] * 3, bytes(draws.randrange(256) for _ in range(4)),
    ))  # fmt: skip
    return data[:start] if draws.random() < 0.1 else data[:start] + put + data[end:]
