"""A power cut after every file operation, simulated from a record of the operations.

Under the strict model only what POSIX promises is there afterwards: a file has the content of its last fsync, a folder
the names of its last fsync. Under the journal model, names are kept in the order in which they were made, as ext4 and
xfs do, but file contents again only if they were synced. At most the work since the last checkpoint may be lost.
"""

import itertools
import os
import random
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from faults.operations import Operation
from faults.target import Target
from faults.tries import Result, Tries, one
from faults.workloads import EVERY, NUM_STEPS, WORKLOADS, Workload, first_step, goes_on, undisturbed


@dataclass
class File:
    """A file's bytes now, and those that would survive."""

    now: bytearray = field(default_factory=bytearray)
    synced: bytes = b""


@dataclass
class Folder:
    """A folder's names now, and those that would survive."""

    now: "dict[str, File | Folder]" = field(default_factory=dict)
    synced: "dict[str, File | Folder]" = field(default_factory=dict)


_SAMPLE = 30
_OFF_SECONDS = 600
"""how long the machine is off; a paper run may wait two minutes for the holder of a lock that lost its content"""


def cut_power(target: Target, *, full: bool, seed: int) -> Iterator[Tries]:
    """Cut the power after each operation of every workload, under both models."""
    for name, make in WORKLOADS.items():
        workload = make(target)
        cuts = list(range(len(undisturbed(target, workload).operations) + 1))
        if not full:
            cuts = random.Random(seed).sample(cuts, min(_SAMPLE, len(cuts)))
        for model, cut in itertools.product(("strict", "journal"), cuts):
            cut_here = partial(_cut, target, workload, cut, strict=model == "strict")
            yield one(f"power cut, {model} model, {name}", f"{name}@{cut}@{model}", cut_here)


def _cut(target: Target, workload: Workload, cut: int, *, strict: bool) -> Result:
    reference = undisturbed(target, workload)
    done = reference.operations[:cut]
    with workload.fresh(target) as folder:
        tree = read_tree(folder)
        replay(tree, folder, done)
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        write_tree(tree, folder, strict=strict)
        problem, again = goes_on(target, workload, folder, reference)
    saved, went_on = _saved(done, workload.name), first_step(again)
    if went_on is not None and went_on < saved:
        problem = f"work lost: step {saved} was saved, but the run went on from {went_on}"
    return Result(problem and f"{problem} (cut after {done[-1] if done else 'nothing'})")


def _saved(operations: list[Operation], name: str) -> int:
    """Return the last checkpoint that the program had finished: it had logged a later step."""
    logged = [int(step) for each in operations for step in re.findall(rb'"step": (\d+),', each.data)]
    begun = max(logged, default=0)
    before = 10 if name == "resume" else 0
    return max(before, (min(begun, NUM_STEPS) - 1) // EVERY * EVERY) if begun else before


def read_tree(folder: Path) -> Folder:
    """Return a folder on disk as a tree that has long been synced."""
    tree = Folder()
    for path in folder.iterdir():
        if path.is_dir():
            tree.now[path.name] = read_tree(path)
        else:
            data = path.read_bytes()
            tree.now[path.name] = File(bytearray(data), data)
    tree.synced = dict(tree.now)
    return tree


def replay(tree: Folder, root: Path, operations: list[Operation]) -> None:
    """Apply recorded operations to a tree; `root` stands in for the folder that they were recorded in."""
    recorded = _recorded_root(operations, root)
    for operation in operations:
        if operation.error:
            continue
        here, name = _find(tree, operation.path, recorded)
        if here is None:
            continue
        node = here.now.get(name) if name else tree
        if operation.kind == "open" and operation.flags & 0o100 and node is None:
            here.now[name] = File()
        elif operation.kind == "open" and operation.flags & 0o1000 and isinstance(node, File):
            node.now.clear()
        elif operation.kind == "write" and isinstance(node, File):
            node.now[operation.offset : operation.offset + len(operation.data)] = operation.data
        elif operation.kind == "truncate" and isinstance(node, File):
            del node.now[operation.length :]
        elif operation.kind == "sync" and isinstance(node, File):
            node.synced = bytes(node.now)
        elif operation.kind == "sync" and isinstance(node, Folder):
            node.synced = dict(node.now)
        elif operation.kind == "mkdir":
            here.now[name] = Folder()
        elif operation.kind in ("unlink", "rmdir"):
            here.now.pop(name, None)
        elif operation.kind in ("rename", "link") and node is not None:
            there, other = _find(tree, operation.other, recorded)
            if operation.kind == "rename":
                del here.now[name]
            if there is not None:
                there.now[other] = node


def _recorded_root(operations: list[Operation], root: Path) -> Path:
    """Return the folder of the recorded run: fresh folders differ in their last name alone."""
    depth = len(root.parts)
    return Path(*Path(operations[0].path).parts[:depth]) if operations else root


def _find(tree: Folder, path: str, root: Path) -> tuple[Folder | None, str]:
    """Return the folder that a path is in, and its name there; the root itself has no name."""
    parts = Path(path).relative_to(root).parts
    here = tree
    for part in parts[:-1]:
        below = here.now.get(part)
        if not isinstance(below, Folder):
            return None, ""
        here = below
    return here, parts[-1] if parts else ""


def write_tree(tree: Folder, folder: Path, *, strict: bool) -> None:
    """Write what is left of a tree after the power cut, with the times of before it."""
    for name, node in (tree.synced if strict else tree.now).items():
        if isinstance(node, Folder):
            (folder / name).mkdir()
            write_tree(node, folder / name, strict=strict)
        else:
            (folder / name).write_bytes(node.synced)
            before = time.time() - _OFF_SECONDS
            os.utime(folder / name, (before, before))
