"""Checkpoints that any safetensors reader can open.

    checkpoints/step-000001000/model.safetensors      the weights, under their parameter names
                               ema.safetensors        their moving average, if one is kept
                               optimizer.safetensors  moments and the spike guard
                               state.json             step, seconds, and the SHA-256 of every file

A file above a size limit is split the way Hugging Face does it: `model-00001-of-00003.safetensors`, ..., and
`model.safetensors.index.json`. A checkpoint is written under a temporary name, flushed and renamed, so that a folder
`step-*` is either whole or absent. The last two are kept. A damaged checkpoint is skipped with a warning, and the
previous one is used. Nothing is ever unpickled.
"""

import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor

from looped.utils.errors import InputError, require
from looped.utils.files import make_folder, read_sealed, require_regular, save, save_sealed, sync_folder, writing

KEEP = 2
MAX_FILE_BYTES = 5_000_000_000
_STATE = "state.json"
_FOLDER_NAME = re.compile(r"step-(\d{9,})")
_FILE_NAME = re.compile(r"(\w+)(-\d{5}-of-\d{5})?\.safetensors|\w+\.safetensors\.index\.json")


class Checkpoint(NamedTuple):
    """Everything that a resumed run needs."""

    step: int
    seconds: float
    """training time so far"""
    parts: dict[str, dict[str, Tensor]]
    """named tensors of `model`, `optimizer` and, if an average is kept, `ema`"""

    @property
    def weights(self) -> dict[str, Tensor]:
        """Return the weights to evaluate: the average, if one is kept."""
        return self.parts.get("ema") or self.parts["model"]


def save_checkpoint(folder: Path, checkpoint: Checkpoint, max_file_bytes: int = MAX_FILE_BYTES) -> Path:
    """Write `folder/step-*`, then delete all but the last `KEEP` checkpoints."""
    make_folder(folder)
    sweep_checkpoints(folder)
    final = folder / f"step-{checkpoint.step:09d}"
    temporary = folder / f".{final.name}"
    try:
        with writing(temporary):
            temporary.mkdir()
            _write(temporary, checkpoint, max_file_bytes)
            _hide(final)
            temporary.rename(final)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    sync_folder(folder)
    with writing(folder):
        for old in sorted(folder.glob("step-*"))[:-KEEP]:
            _hide(old)
    sync_folder(folder)  # before anything is deleted: after a power cut, an old name must not lead to half a checkpoint
    sweep_checkpoints(folder)
    return final


def sweep_checkpoints(folder: Path) -> None:
    """Delete checkpoints that a killed process left half written or half deleted."""
    with writing(folder):
        for leftover in folder.glob(".step-*"):
            leftover.unlink() if leftover.is_symlink() or leftover.is_file() else shutil.rmtree(leftover)


def _hide(path: Path) -> None:
    """Rename a checkpoint that is to be deleted, so that no reader sees it half deleted."""
    if os.path.lexists(path):
        path.rename(path.with_name(f".{path.name}.old"))


def _write(folder: Path, checkpoint: Checkpoint, max_file_bytes: int) -> None:
    hashes = {}
    for part, tensors in checkpoint.parts.items():
        for name, data in _files_of_part(part, tensors, max_file_bytes):
            save(folder / name, lambda handle, data=data: handle.write(data))
            hashes[name] = hashlib.sha256(data).hexdigest()
    save_sealed(folder / _STATE, {"step": checkpoint.step, "seconds": checkpoint.seconds, "files": hashes})


def _files_of_part(part: str, tensors: dict[str, Tensor], max_file_bytes: int) -> Iterator[tuple[str, bytes]]:
    """Yield (file name, content) of one part: a single file, or several files and an index."""
    groups: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        num_bytes = tensor.numel() * tensor.element_size()
        if groups[-1] and size + num_bytes > max_file_bytes:
            groups.append({})
            size = 0
        groups[-1][name] = tensor.detach().cpu().contiguous()
        size += num_bytes
    if len(groups) == 1:
        yield f"{part}.safetensors", tensors_to_bytes(groups[0])
        return
    files = {f"{part}-{number:05d}-of-{len(groups):05d}.safetensors": group for number, group in enumerate(groups, 1)}
    for name, group in files.items():
        yield name, tensors_to_bytes(group)
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    index = {
        "metadata": {"total_size": total},
        "weight_map": {name: file for file, group in files.items() for name in group},
    }
    yield f"{part}.safetensors.index.json", json.dumps(index, indent=1).encode()


def load_newest(folder: Path, use: Callable[[Checkpoint], object] = lambda checkpoint: None) -> Checkpoint | None:
    """Return the newest checkpoint that is whole and that `use` accepts, or None if there is none at all."""
    problems = []
    for path in sorted(folder.glob("step-*"), reverse=True):
        try:
            checkpoint = load_checkpoint(path)
            use(checkpoint)
        except InputError as error:
            problems.append(str(error))
            continue
        if problems:
            print(f"looped: {problems[0]}; using step {checkpoint.step} instead", file=sys.stderr)
        return checkpoint
    if problems:
        raise InputError(f"no checkpoint in {folder} can be read: {problems[0]}")
    return None


def load_checkpoint(path: Path) -> Checkpoint:
    """Read one checkpoint folder. Raise InputError if any file is missing or differs from its hash."""
    try:
        state = _read_state(path)
        parts: dict[str, dict[str, Tensor]] = {}
        for name, expected in state["files"].items():
            match = _FILE_NAME.fullmatch(name)
            require(match is not None, f"{path / name} is not a file of a checkpoint")
            require_regular(path / name)
            data = (path / name).read_bytes()
            actual = hashlib.sha256(data).hexdigest()
            require(
                actual == expected,
                f"{path / name} is damaged: expected SHA-256 {str(expected)[:12]}..., got {actual[:12]}...",
            )
            if match is not None and match[1] is not None:
                parts.setdefault(match[1], {}).update(tensors_from_bytes(data))
        require("model" in parts, f"{path} has no model.safetensors")
        return Checkpoint(int(state["step"]), float(state["seconds"]), parts)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, SafetensorError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is not a checkpoint: {type(error).__name__}: {error}") from None


def _read_state(path: Path) -> dict[str, Any]:
    """Return the content of state.json, checked against its own hash and against the name of the folder."""
    require(not path.is_symlink(), f"{path} is a link: expected a folder")
    require_regular(path / _STATE)
    state = read_sealed(path / _STATE)
    match = _FOLDER_NAME.fullmatch(path.name)
    named = None if match is None else int(match[1])
    require(named == state["step"], f"{path} holds step {state['step']}: expected the step in its name")
    return state
