"""Data sets of a task: show examples, write them to a file, check a file, and compute statistics.

A file has one JSON object per line. The first line is a header with task, seed, split and size. Every other line is
one example, as `Task.examples` gives it.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import IO, Any

import numpy as np

from looped.tasks import SPLITS, Batch, Split, Task, decode_task, encode_task
from looped.tasks.base import MAX_EXAMPLES
from looped.utils.errors import InputError, require, require_within
from looped.utils.files import bounded_lines, from_json, save
from looped.utils.types import Progress

CHUNK = 500  # examples that are drawn and written at a time
MAX_SIZE = 10**9  # examples in a file
MAX_NUMBERS = 2**26  # input values for statistics, which are in memory together at about 40 bytes each


def sample(task: Task, size: int = 5, seed: int = 0, split: Split = "train") -> list[dict[str, Any]]:
    """Return the first `size` examples of a split."""
    return list(chain.from_iterable(parts(task, size, seed, split)))


def parts(
    task: Task, size: int, seed: int = 0, split: Split = "train", *, most: int = MAX_EXAMPLES
) -> Iterator[list[dict[str, Any]]]:
    """Return an iterator over lists of the first `size` examples, so that few are in memory at a time."""
    require_within("size", size, 1, most)
    numbers = range(size)
    return (task.examples(seed, split, numbers[start : start + CHUNK]) for start in range(0, size, CHUNK))


def build(
    task: Task,
    path: str | Path,
    size: int,
    seed: int = 0,
    split: Split = "train",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Write a data set and return its header and hash. The old file at `path` stays until the new one is complete."""
    path = Path(path)
    require_within("size", size, 1, MAX_SIZE)
    require(not path.is_dir(), f"{path}: expected a file, got a folder")
    header = {"task": encode_task(task), "seed": seed, "split": split, "size": size}
    digest = hashlib.sha256()

    def write(file: IO[bytes]) -> None:
        for line in _lines(task, header, progress):
            digest.update(line)
            file.write(line)

    save(path, write)
    return {"path": str(path), **header, "sha256": digest.hexdigest()}


def check(path: str | Path, progress: Progress | None = None) -> dict[str, Any]:
    """Verify every example of a file with the task's reference solver. Raise InputError at the first wrong one."""
    path = Path(path)
    rows = _read(path)
    header = next(rows, None)
    if header is None:
        raise InputError(f"{path}: expected a data set, got an empty file")
    task, size = _task_and_size(header, path)
    done = 0
    for done, example in enumerate(rows, start=1):
        where = f"{path}, line {done + 1}"
        require(done <= size, f"{where}: expected {size} examples (from the first line), got more")
        try:
            task.verify(example)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        if progress is not None:
            progress(done, size)
    require(done == size, f"{path}: expected {size} examples (from the first line), got {done}")
    return {"path": str(path), "task": task.name, "examples": done}


def stats(task: Task, size: int = 1000, seed: int = 0, split: Split = "train") -> dict[str, Any]:
    """Return statistics of the first `size` examples of a split, such as the classes and the best constant answer.

    Held-out examples that repeat are counted once, as in a test.
    """
    numbers_each = task.spec.seq_len * (task.spec.input_size if task.spec.kind == "vectors" else 1)
    require_within("size", size, 1, max(1, min(MAX_EXAMPLES, MAX_NUMBERS // numbers_each)))
    if split != "train":
        size = task.distinct_among(split, size)
    batch = task.sample(seed, split, range(size))
    examples = task.examples(seed, split, range(size))
    result: dict[str, Any] = {
        "task": task.name,
        "split": split,
        "seed": seed,
        "examples": size,
        "sha256": fingerprint(batch),
        "seq_len": batch.inputs.shape[1],
        "counted_positions": float(batch.mask.sum(axis=1).mean()),
        "baseline": {task.metric: task.baseline(batch)},
    }
    if batch.mask.sum() == size and task.spec.kind == "tokens":
        classes = Counter(batch.targets[batch.mask].tolist())
        result["classes"] = {str(label): classes[label] for label in sorted(classes)}
    return result | task.statistics(examples)


def split_problems(task: Task, seed: int = 0, size: int | None = None, count: int = 500) -> list[str]:
    """Return problems in the first examples of each split: inputs that are also training examples, or that repeat."""
    drawn = {split: task.sample(seed, split, range(count), size).inputs for split in SPLITS}
    inputs = {split: {example.tobytes() for example in examples} for split, examples in drawn.items()}
    problems = []
    for split in ("validation", "test"):
        if shared := len(inputs[split] & inputs["train"]):
            problems.append(
                f"{shared} of {len(inputs[split])} {split} examples are training examples too: draw them with "
                "Task.draw_batch, which keeps the splits apart"
            )
        if len(inputs[split]) < count // 10 and task.num_distinct(split, size) is None:
            problems.append(
                f"only {len(inputs[split])} of {count} {split} examples differ: let Task.num_distinct return "
                "how many there are, or the intervals will be too narrow"
            )
    return problems


def fingerprint(batch: Batch) -> str:
    """Return a hash of a batch's content."""
    digest = hashlib.sha256()
    for array in batch:
        digest.update(f"{array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _lines(task: Task, header: dict[str, Any], progress: Progress | None) -> Iterator[bytes]:
    yield _as_line(header)
    done = 0
    for examples in parts(task, header["size"], header["seed"], header["split"], most=MAX_SIZE):
        yield b"".join(map(_as_line, examples))
        done += len(examples)
        if progress is not None:
            progress(done, header["size"])


def _as_line(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode() + b"\n"


def _read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file, line by line."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(bounded_lines(file, path), start=1):
                try:
                    value = from_json(line)
                except ValueError:  # also for invalid UTF-8
                    value = None
                if not isinstance(value, dict):
                    raise InputError(f"{path}, line {number}: expected a JSON object, got {_shorten(line)}")
                yield value
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None


def _shorten(line: bytes) -> str:
    text = line.decode(errors="replace").strip()
    return repr(text if len(text) <= 40 else text[:40] + "...")


def _task_and_size(header: dict[str, Any], path: Path) -> tuple[Task, int]:
    size = header.get("size")
    require(
        isinstance(header.get("task"), dict) and type(size) is int and size >= 1,
        f"{path}, line 1: expected an object with the fields task and size",
    )
    try:
        return decode_task(header["task"]), size  # type: ignore[return-value]
    except InputError as error:
        raise InputError(f"{path}, line 1: {error}") from None
